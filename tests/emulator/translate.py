"""From the Metal source that MLX generates to C++ that clang compiles for a CPU.

What differs: literals without a suffix are float, threadgroup variables live in the emulator's
arena, and a launcher calls the kernel as one thread. Lines stay where they are.
"""

import re
from dataclasses import dataclass

from emulator.capture import Call

_PARAMETER = re.compile(
    r"\s*(?P<type>.+?)\s+(?P<name>\w+)\s+\[\[(?P<attribute>\w+)(?:\((?P<index>\d+)\))?\]\]"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FLOAT = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
_THREADGROUP = re.compile(
    r"(?:(?<=[;{}])|^)(\s*)threadgroup\s+((?:[^;*&()=\[\]]|\[[^\]]*\])+);", re.MULTILINE
)
_TYPE_AND_NAMES = re.compile(r"((?:const\s+)?[\w:]+(?:\s*<[^;]*>)?)\s+(\w.*)", re.DOTALL)
_ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "(full_count + 3) / 4",
    "dispatch_simdgroups_per_threadgroup": "(full_count + 31) / 32",
    "dispatch_threads_per_threadgroup": "full",
    "grid_origin": "uint3{0, 0, 0}",
    "grid_size": "grid",
    "quadgroup_index_in_threadgroup": "index / 4",
    "quadgroups_per_threadgroup": "(count + 3) / 4",
    "simdgroup_index_in_threadgroup": "index / 32",
    "simdgroups_per_threadgroup": "(count + 31) / 32",
    "thread_execution_width": "32u",
    "thread_index_in_quadgroup": "index % 4",
    "thread_index_in_simdgroup": "index % 32",
    "thread_index_in_threadgroup": "index",
    "thread_position_in_grid": "position * full + place",
    "thread_position_in_threadgroup": "place",
    "threadgroup_position_in_grid": "position",
    "threadgroups_per_grid": "groups",
    "threads_per_grid": "grid",
    "threads_per_simdgroup": "32u",
    "threads_per_threadgroup": "size",
}
LAUNCHER = """
#line 1 "launcher"
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) char _end[];
static EMU_UNCHECKED uint3 triple(const unsigned* v) {{ return uint3{{v[0], v[1], v[2]}}; }}
static EMU_UNCHECKED void run_thread(EmuLaunch* launch, unsigned index) {{
  [[maybe_unused]] uint3 size = triple(launch->size), full = triple(launch->full_size);
  [[maybe_unused]] uint3 position = triple(launch->position), groups = triple(launch->groups);
  [[maybe_unused]] uint3 grid = triple(launch->grid);
  [[maybe_unused]] uint3 place = {{index % size.x, index / size.x % size.y,
                                   index / size.x / size.y}};
  [[maybe_unused]] uint count = size.x * size.y * size.z;
  [[maybe_unused]] uint full_count = full.x * full.y * full.z;
  void** buffers = launch->buffers;
  auto* called = &{function};
  asm volatile("" : "+r"(called));  // not inlined: this function is not instrumented
  called({arguments});
}}
extern "C" int emu_launch(EmuLaunch* launch) {{
  launch->run_thread = run_thread;
  launch->image_begin = __ehdr_start;
  launch->image_end = _end;
  return emu_run(launch);
}}
"""
PREAMBLE = '#include <metal_stdlib>\n#include "mlx/backend/metal/kernels/utils.h"\n'


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel: a buffer, or an attribute such as the thread's index."""

    type: str
    name: str
    attribute: str
    index: int


@dataclass(frozen=True)
class Unit:
    """A kernel as C++, to be compiled after PREAMBLE."""

    source: str
    body: str  # the part between the braces, without comments
    buffers: list[Parameter]


def translate(call: Call, *, for_types: bool) -> Unit:
    """The C++ of a call; with `for_types` only to be compiled, else with a launcher."""
    source = blank_comments(call.source)
    signature = source.index(f"[[kernel]] void {call.name}(\n")
    opening = source.index(") {\n", signature)
    body_start = opening + len(") {\n")
    instance = source.find("\ntemplate [[host_name(", body_start)
    arguments = ""
    if instance >= 0:  # the last mention of the kernel is followed by its template arguments
        arguments = source[instance:].rsplit(call.name, 1)[1].strip().rstrip(";")
    head_start = source.rfind("template <", 0, signature) if arguments else signature
    parameters = [
        _parameter(line)
        for line in source[signature : opening + 1].splitlines()[1:]
        if line.strip()
    ]
    title = call.name.removeprefix("custom_kernel_")
    header = source[:head_start]
    body = source[body_start : instance if instance >= 0 else len(source)]
    rewritten = "\n".join(
        (
            f'#line 1 "{title}.header"',
            _floats(header),
            source[head_start:body_start],
            f'#line 1 "{title}.body"',
            _floats(threadgroup_variables(body)),
        )
    )
    function = call.name + arguments
    if for_types:
        ending = f"template decltype({function}) {function};\n" if arguments else ""
    else:
        values = ", ".join(_argument(parameter) for parameter in parameters)
        ending = LAUNCHER.format(function=function, arguments=values)
    buffers = [parameter for parameter in parameters if parameter.attribute == "buffer"]
    return Unit(rewritten + "\n" + ending, body, buffers)


def _parameter(line: str) -> Parameter:
    found = _PARAMETER.match(line)
    if not found:
        raise ValueError(f"no parameter of a kernel: {line!r}")
    return Parameter(found["type"], found["name"], found["attribute"], int(found["index"] or -1))


def _argument(parameter: Parameter) -> str:
    if parameter.attribute != "buffer":
        return _ATTRIBUTES[parameter.attribute]
    buffer = f"buffers[{parameter.index}]"
    if parameter.type.endswith("&"):
        return f"*({parameter.type[:-1]}*){buffer}"
    return f"({parameter.type}){buffer}"


def blank_comments(source: str) -> str:
    """The same lines without what comments say."""
    return _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def _floats(source: str) -> str:
    """Literals such as 0.5 are float in Metal and double in C++."""
    return _FLOAT.sub(r"\1f", source)


def threadgroup_variables(body: str) -> str:
    """`threadgroup T a[N], b;` becomes references into the arena, on the same lines."""
    count = 0

    def reference(found: re.Match[str]) -> str:
        nonlocal count
        space, declaration = found.groups()
        matched = _TYPE_AND_NAMES.fullmatch(declaration)
        if not matched:
            return found[0]
        element, names = matched.groups()
        text = space
        for name in names.split(","):
            variable, _, dimensions = name.strip().partition("[")
            extent = f"[{dimensions}" if dimensions else ""
            kind = f"emu_variable_{count}"
            text += (
                f"typedef threadgroup {element} {kind}{' '.join(extent.split())}; "
                f"{kind}& {variable} = *({kind}*)(uintptr_t)emu_threadgroup_memory({count}, "
                f'sizeof({kind}), alignof({kind}), EmuSite{{"{variable}", __FILE__, __LINE__}});'
            )
            count += 1
        return text + "\n" * declaration.count("\n")

    return _THREADGROUP.sub(reference, body)
