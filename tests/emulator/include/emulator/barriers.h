// Barriers and the flags that say which memory they order.
#pragma once

namespace metal {
enum class mem_flags : unsigned {
  mem_none = 0,
  mem_device = EMU_DEVICE,
  mem_threadgroup = EMU_THREADGROUP,
  mem_texture = 4,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return (mem_flags)((unsigned)a | (unsigned)b);
}
enum memory_order { memory_order_relaxed };

METAL_FUNC void threadgroup_barrier(mem_flags flags, EMU_SITE("threadgroup_barrier")) {
  emu_threadgroup_barrier((unsigned)flags, site);
}
METAL_FUNC void simdgroup_barrier(mem_flags flags, EMU_SITE("simdgroup_barrier")) {
  emu_simdgroup_barrier((unsigned)flags, site);
}
}  // namespace metal
