"""What Ctrl-C does while libraries are being imported and a model is being loaded."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # the exit code
_STDERR = 2  # sys.stderr may be something that a spinner has put there


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """In this region Ctrl-C ends the process on the spot, with exit code 130 and no cleaning up.

    For what leaves nothing behind. Libraries swallow a KeyboardInterrupt that meets them while
    they are imported, or turn it into an error of theirs. A handler that somebody else has set,
    or a signal that is ignored, stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):  # standard error may be closed
        if os.isatty(_STDERR):
            os.write(_STDERR, b"\r\x1b[2K\x1b[?25h")  # instead of a spinner, and the cursor back
    os._exit(INTERRUPTED)
