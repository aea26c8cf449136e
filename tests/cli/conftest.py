"""Running the command in this process, as a rule with a fake runtime in place of the model."""

import signal
import sys
from collections.abc import Callable, Sequence

import pytest
from fake_runtime import FakeRuntime
from running import Run

from mlx_diffusiongemma.cli import app, chat, generate


@pytest.fixture
def run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """Run the command in this process; `runtime` stands in for the loaded model."""

    def run(
        *args: str,
        runtime: FakeRuntime | None = None,
        fake: bool = True,
        lines: Sequence[str] = (),
    ) -> Run:
        def open_fake(*names: object, **options: object) -> FakeRuntime:
            assert runtime is not None, "a model was loaded"
            return runtime

        stdin = iter([f"{line}\n" for line in lines])
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", lambda number, handler: None)
            patch.setattr(sys, "argv", ["dgemma-mlx", *args])
            patch.setattr(sys.stdin, "readline", lambda: next(stdin, ""))
            for module in (chat, generate) if fake else ():
                patch.setattr(module, "open_runtime", open_fake)
            with pytest.raises(SystemExit) as exit_:
                app.main()
        out, err = capsys.readouterr()
        return Run(exit_.value.code, out, err)

    return run
