"""The flags that say what an answer may hold, through the command itself."""

import json
import re

import pytest
from running import run_command


def test_a_schema_and_a_scaffold_hold(tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "letter.txt").write_text("Dear <fill:choices:Ada|Bob>,\n<fill:regex:[a-z ]{3,9}>.")
    asked = {
        ("--json-schema", str(tmp_path / "schema.json")): r'\{"n": ?-?\d+\}',
        ("--scaffold", str(tmp_path / "letter.txt")): r"Dear (Ada|Bob),\n[a-z ]{3,9}\.",
    }
    for flags, pattern in asked.items():
        done = run_command(
            "generate", "--model", "demo", "--seed", "1", "--steps", "4", *flags, "2 + 2 ="
        )
        assert done.code == 0, done.err
        assert re.fullmatch(pattern, done.out.removesuffix("\n"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--regex", "("], "--regex: '(' is not a regular expression"),
        (["--regex", "a", "--choices", "b"], "--regex and --choices are given"),
        (["--regex", "a", "--mode", "ar"], "a constraint is given and --mode is 'ar'"),
        (["--regex", "a{9}b{9}c{9}", "--max-tokens", "3"], "max_tokens is 3"),
        (["--json-schema", "none.json"], "none.json cannot be read"),
        (["--json-schema", "binary"], "is not text"),
        (["--json-schema", "not.json"], "--json-schema: the schema is not JSON"),
        (["--json-schema", "not_supported.json"], "has the keyword 'not'"),
        (["--scaffold", "not.json"], "--scaffold: the scaffold has no hole"),
    ],
)
def test_what_cannot_be_done_is_one_line(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "not.json").write_text("{")
    (tmp_path / "not_supported.json").write_text('{"not": {}}')
    done = run_command("generate", "--model", "demo", *flags, "2 + 2 =")
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
