"""Compiling for the CPU: which clang, with which flags, and what was compiled before.

Results lie in build/emulator and are found again by a hash of all that went into them.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import mlx.core as mx

from emulator.translate import PREAMBLE

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "emulator"
_PLACE = re.compile(r"\.(?:metal|header|body):[1-9]\d*$")
_LOOK_BACK = 64  # bytes
OLDEST_CLANG = 17  # the first whose __bf16 can be computed with

_LANGUAGE = [
    *("-x", "c++", "-std=c++17", "-nostdinc++", "-fPIC", "-fno-exceptions", "-fno-rtti"),
    # Attributes and pragmas of Metal that mean nothing here.
    *("-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unknown-pragmas"),
    *("-Wno-user-defined-literals", "-Wno-reserved-user-defined-literal", "-Wno-unused-value"),
    # 16-bit floats are rounded after every operation, as on a GPU.
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
]
# Is the precompiled header up to date? By content: the files' times change with every checkout.
_BY_CONTENT = ["-Xclang", "-fvalidate-ast-input-files-content"]
_UNDEFINED = "array-bounds,shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow"
_CONTRACT = ["-mfma"] if platform.machine() == "x86_64" else []
# Variables that a kernel forgot to set hold NaN or a huge number in every mode.
_UNSET = "-ftrivial-auto-var-init=pattern"
MODES = {
    "fast": ["-O2", "-ffp-contract=off", _UNSET],
    # a * b + c rounded once, as a GPU's compiler may do it.
    "contracted": ["-O2", "-ffp-contract=fast", *_CONTRACT, _UNSET],
    # DWARF 4, because addr2line of binutils 2.40 confuses files in version 5.
    "checked": [
        *("-O1", "-gdwarf-4", "-ffp-contract=off", "-fno-vectorize", "-fno-slp-vectorize", _UNSET),
        *("-fno-builtin-memset", "-fno-builtin-memcpy", "-fsanitize=thread"),
        *("-mllvm", "-tsan-instrument-read-before-write=1"),
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        f"-fsanitize={_UNDEFINED}",
    ],
}


class MetalError(AssertionError):
    """The kernel, while it ran, did something that Metal forbids or leaves undefined."""


class CompileError(AssertionError):
    """The kernel is not even C++."""


@cache
def find_clang() -> tuple[str, int] | None:
    """The newest clang++ that can do it, and its version."""
    best = None
    for name in ("clang++", *(f"clang++-{version}" for version in range(OLDEST_CLANG, 40))):
        path = shutil.which(name)
        if path:
            shown = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"clang version (\d+)", shown)
            if version and (best is None or int(version[1]) > best[1]):
                best = (path, int(version[1]))
    return best if best and best[1] >= OLDEST_CLANG else None


@cache
def missing() -> str | None:
    """Why kernels cannot be run on this machine's CPU; None when they can."""
    if not sys.platform.startswith("linux"):
        return "the kernel emulator runs on Linux only"
    if find_clang() is None:
        return f"no clang {OLDEST_CLANG} or newer for the kernel emulator (try clang-19)"
    return None


def execute(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and keep what it prints."""
    return subprocess.run([*map(str, command)], input=stdin, capture_output=True, text=True)


def clang() -> str:
    """The command of the compiler."""
    found = find_clang()
    if found is None:
        raise RuntimeError(missing())
    return found[0]


@cache
def _environment_hash() -> str:
    """Of everything but the kernel itself: our sources, MLX and the compiler."""
    facts = (HERE, mx.__version__, find_clang(), platform.machine())
    digest = hashlib.sha256(repr(facts).encode())
    for folder in ("native", "include"):
        for path in sorted((HERE / folder).rglob("*")):
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _cached(suffix: str, *parts: object) -> Path:
    digest = hashlib.sha256(repr((_environment_hash(), parts)).encode()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    return CACHE / f"{digest[:24]}{suffix}"


def _produce(target: Path, *command: str | Path) -> Path:
    """Run `command`, whose last argument names the output, unless its result is there already."""
    if not target.exists():
        temporary = target.with_name(f"{target.name}.{os.getpid()}")
        done = execute(*command, temporary)
        if done.returncode:
            raise CompileError(done.stderr)
        temporary.replace(target)
    return target


@cache
def include_flags() -> list[str]:
    """Our headers before MLX's. One of MLX's is patched: clang has no array parameters with an
    address space, so `strides[2]` becomes a pointer."""
    theirs = Path(mx.__file__).parent / "include"
    name = "mlx/backend/metal/kernels/utils.h"
    patched = _cached(".include", "patched headers")
    copy = patched / name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (theirs / name).read_text()
        copy.write_text(re.sub(r"(constant const int64_t )(strides)\[[23]\]", r"\1* \2", text))
    folders = (HERE / "include", patched, HERE / "native", theirs)
    return [part for folder in folders for part in ("-I", str(folder))]


def language_flags() -> list[str]:
    """Flags of every compilation of a kernel."""
    return [*_LANGUAGE, *include_flags()]


@cache
def _precompiled(preamble: str, mode: str) -> Path:
    header = _cached(".h", preamble)
    header.write_text(preamble)
    flags = [*language_flags(), *MODES[mode], *_BY_CONTENT, "-x", "c++-header"]
    target = _cached(".pch", preamble, mode, MODES[mode], _LANGUAGE)
    return _produce(target, clang(), *flags, header, "-o")


@cache
def _compiler_library() -> str:
    """Functions that compiled code calls, such as conversions of half precision."""
    return execute(clang(), "-print-libgcc-file-name").stdout.strip()


@cache
def _runtime() -> ctypes.CDLL:
    """The part that all kernels share, loaded so that they find it."""
    sources = sorted((HERE / "native").glob("*.cpp"))
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-g"]
    target = _produce(_cached(".runtime.so"), clang(), *flags, *sources, "-o")
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


_libraries: dict[Path, ctypes.CDLL] = {}


def build(source: str, mode: str, preamble: str = PREAMBLE) -> tuple[ctypes.CDLL, Path]:
    """Compile and load a translated kernel; CompileError with the compiler's words if it fails."""
    _runtime()
    target = _cached(".so", preamble, source, mode, MODES[mode], _LANGUAGE)
    if target not in _libraries:
        if not target.exists():
            text = target.with_suffix(".cpp")
            text.write_text(source)
            compiled = ["-include-pch", _precompiled(preamble, mode), "-c", text, "-o"]
            flags = [*language_flags(), *MODES[mode], *_BY_CONTENT]
            item = _produce(target.with_suffix(".o"), clang(), *flags, *compiled)
            # By the linker itself, quicker than by clang. What is missing, the runtime has.
            _produce(target, "ld", "-shared", item, _compiler_library(), "-o")
            item.unlink()
        _libraries[target] = ctypes.CDLL(str(target))
    return _libraries[target], target


def source_line(library: Path, offset: int) -> str | None:
    """`file:line` in the kernel's source of an instruction; None outside of it.

    An optimiser's own instructions have no line: then it is that of the nearest before.
    """
    addresses = [hex(offset - back) for back in range(_LOOK_BACK)]
    shown = execute("addr2line", "-i", "-e", library, *addresses).stdout
    # The innermost inlined function comes first; those of the emulator's headers are passed over.
    places = (Path(line.split(" ")[0]).name for line in shown.splitlines())
    return next((place for place in places if _PLACE.search(place)), None)
