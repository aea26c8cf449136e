"""What Apple's compiler would refuse: a build with real address spaces that is never run."""

import re
from collections.abc import Sequence
from typing import Any

from emulator.capture import capture
from emulator.compiler import clang, execute, language_flags
from emulator.translate import PREAMBLE, translate

_TO_BFLOAT = re.compile(r"warning:.*to '[^']*(?:__bf16|bfloat)")
_SCALARS = r"(?:float|half|bfloat(?:16_t)?|u?(?:int|short|char|long)(?:\d+_t)?|T)[234]?"
# clang's C++ accepts these, Metal does not.
_REFUSED = {
    re.compile(r"\bdouble\b"): "Metal has no double",
    re.compile(
        rf"(?:^|[;{{(,])\s*(?:const\s+)?{_SCALARS}\s*[*&]\s*\w+\s*[=;]"
    ): "a pointer or reference without an address space",
    re.compile(r"\[[&=]?\w*\]\s*\(.*\)\s*(?:->[^{]*)?\{"): "lambda expressions need Metal 4",
}


def type_errors(kernel: Any, *, inputs: Sequence[Any], **launch: Any) -> list[str]:
    """Compiler errors of `kernel` when called with these arguments; an empty list if it is fine."""
    call = capture(kernel, inputs=inputs, **launch)
    unit = translate(call, for_types=True)
    flags = ["-DEMU_TYPES=1", "-Wimplicit-float-conversion", "-fsyntax-only"]
    # Metal before version 4 is C++14; MLX's headers use a C++17 feature or two.
    flags += ["-Wuninitialized", "-Wsometimes-uninitialized", "-Werror=return-type"]
    done = execute(clang(), *language_flags(), *flags, "-", stdin=PREAMBLE + unit.source)
    errors = []
    for line in done.stderr.splitlines():
        if _TO_BFLOAT.search(line):
            errors.append(line.replace("warning:", "error: no implicit conversion in Metal:"))
        elif re.search(r": (?:fatal )?error:", line) or "uninitialized" in line:
            errors.append(line)
    for number, line in enumerate(unit.body.splitlines(), 1):
        errors += [
            f"body:{number}: error: {why}" for what, why in _REFUSED.items() if what.search(line)
        ]
    return errors
