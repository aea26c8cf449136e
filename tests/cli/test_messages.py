"""Notes, errors and hints that say what happened: a stop string, no prompt, no folder to be in."""

import os

import pytest
from fake_runtime import FakeRuntime, block, finished

from mlx_diffusiongemma.cli.console import describe


def test_a_stop_string_at_the_very_beginning_is_said(run_here):
    """The tokens of the answer hold it; one that they do not hold has ended nothing."""
    written = FakeRuntime().tokenizer.decode((1, 2, 3))
    for stop, said in (
        (written, f"the stop string {written!r} ended the answer before its first letter"),
        ("never", "the model ended its answer at once"),
    ):
        runtime = FakeRuntime([block(""), finished("")])
        run = run_here("generate", "Hello", "--stop", stop, runtime=runtime)
        assert (run.out, run.err) == ("\n", f"note: {said}\n")


def test_a_missing_prompt_is_told_of_quotes_and_of_standard_input(run_here):
    run = run_here("generate")
    assert run.err.splitlines()[-1] == (
        'hint: `dgemma-mlx generate "two words"`: put it in quotes, give - to read standard input, '
        "or name a file of prompts with --batch-file"
    )


def test_a_working_directory_that_is_gone_is_said(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        os.getcwd()
    assert describe(caught.value) == (
        "the working directory is gone",
        "change to a folder that exists",
    )
    monkeypatch.chdir(tmp_path)
    assert describe(FileNotFoundError(2, "No such file", "x"))[0] == "`x`: No such file"
    assert describe(FileNotFoundError(2, "No such file"))[0] == "No such file"
