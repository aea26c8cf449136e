"""A file of prompts: read line by line, answered in order, gone on with after a kill."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_diffusiongemma.batch import BatchAnswer
from mlx_diffusiongemma.batch_file import AnswerFile, answer_rows, read_rows
from mlx_diffusiongemma.errors import ConfigError, DGemmaError, GenerationError
from mlx_diffusiongemma.options import GenerationOptions

OPTIONS = GenerationOptions(seed=5, max_tokens=100)


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="prompts.jsonl"):
        path = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return path

    return write


def rows_of(path, options=OPTIONS, system=None, model="m"):
    return read_rows(path.name, path.read_bytes(), options, system, model)


def backwards(requests):
    """Answers pairs of requests the second one first; what they say depends on the prompt alone."""
    waiting = []
    for index, request in enumerate(requests):
        text = request.prompt.upper()
        outcome = GenerationError("spoilt") if text == "BAD" else SimpleNamespace()
        outcome.to_dict = lambda text=text: {"text": text}
        waiting.append(BatchAnswer(index, outcome, index + 1))
        if len(waiting) == 2:
            yield from reversed(waiting)
            waiting = []
    yield from waiting


def run(rows, out):
    with AnswerFile(out, rows) as answers:
        passes = list(answer_rows(answers, backwards))
    return answers, passes


# Prompts ----------------------------------------------------------------------------------------


def test_a_row_is_a_prompt_or_messages_with_settings_of_its_own(write):
    talk = [{"role": "user", "content": "Hi"}]
    path = write(
        {"prompt": "a"},
        "",
        {"messages": talk, "id": "x", "seed": 7, "stop": ["."]},
        {"prompt": "c", "id": 3, "max_tokens": 4, "mode": "ar"},
    )
    rows = rows_of(path)
    assert [(row.line, row.id) for row in rows] == [(1, None), (3, "x"), (4, 3)]
    assert [row.request.prompt for row in rows] == ["a", talk, "c"]
    assert [row.request.options for row in rows] == [
        OPTIONS,
        GenerationOptions(seed=7, max_tokens=100, stop=(".",)),
        GenerationOptions(seed=5, max_tokens=4, mode="ar"),
    ]


def test_a_system_message_leads_prompts_and_leaves_messages_alone(write):
    talk = [{"role": "user", "content": "Hi"}]
    rows = rows_of(write({"prompt": "a"}, {"messages": talk}), system="Be brief.")
    assert rows[0].request.prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
    ]
    assert rows[1].request.prompt == talk


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 2: not JSON"),
        ("[1]", "line 2: list where an object belongs"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"prompt": "a", "temprature": 1}', "line 2: unknown field 'temprature'"),
        ('{"id": 4}', 'line 2: "prompt" or "messages" is needed'),
        ('{"prompt": "a", "messages": []}', 'line 2: "prompt" or "messages" is needed'),
        ('{"prompt": "a", "seed": -1}', "line 2: seed is -1"),
        ('{"prompt": "a", "top_k": 4}', "line 2: top_k is 4 and mode is 'diffusion'"),
        ('{"prompt": "a", "id": [1]}', r"line 2: id is \[1\]"),
        ('{"prompt": "a", "constraint": 1}', "line 2: unknown field 'constraint'"),
    ],
)
def test_a_line_that_is_no_request_says_so_and_the_others_are_read(write, line, said):
    first, bad, last = rows_of(write({"prompt": "a"}, line, {"prompt": "b"}))
    assert (first.request.prompt, last.request.prompt) == ("a", "b")
    assert isinstance(bad.request, DGemmaError) and bad.request.hint
    with pytest.raises(DGemmaError, match=f"`prompts.jsonl` {said}"):
        raise bad.request


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n{"prompt": "b"}')
    bad, good = rows_of(path)
    assert "not JSON" in str(bad.request) and good.request.prompt == "b"


def test_whatever_an_answer_depends_on_is_in_the_digest(write):
    path = write({"prompt": "a"}, {"prompt": "b"})
    rows = rows_of(path)
    digests = {row.digest for row in rows}
    for other in (
        rows_of(path, GenerationOptions(seed=6, max_tokens=100)),
        rows_of(path, system="S"),
        rows_of(path, model="n"),
    ):
        digests.add(other[0].digest)
    assert len(digests) == 5
    assert rows_of(path)[0].digest == rows[0].digest


# Answers ----------------------------------------------------------------------------------------


def test_answers_are_written_in_the_order_of_the_prompts(write, tmp_path):
    path = write({"prompt": "a", "id": "one"}, {"prompt": "bad"}, "nonsense", {"prompt": "c"})
    answers, passes = run(rows_of(path), tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    assert [line.get("text", line.get("error", "")[:25]) for line in lines] == [
        *("A", "spoilt", "`prompts.jsonl` line 3: n", "C"),
    ]
    assert [line.get("id") for line in lines] == ["one", None, None, None]
    assert sorted(answers.failed) == [2, 3] and passes == [2, 1, 3]


def test_a_kill_at_any_byte_loses_and_doubles_nothing(write, tmp_path):
    path = write({"prompt": "a"}, {"prompt": "bé"}, "nonsense", {"prompt": "c"}, {"prompt": "bad"})
    rows, out = rows_of(path), tmp_path / "out"
    run(rows, out)
    whole = out.read_bytes()
    for cut in range(len(whole) + 1):
        out.write_bytes(whole[:cut])
        answers, _ = run(rows, out)
        assert out.read_bytes() == whole
        assert sorted(answers.failed) == [3, 5]


def test_what_is_answered_is_not_asked_again(write, tmp_path):
    rows, out = rows_of(write({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})), tmp_path / "out"
    run(rows, out)
    out.write_bytes(out.read_bytes().splitlines(keepends=True)[0])
    assert run(rows, out)[1] == [2, 1]
    assert run(rows, out)[1] == []


@pytest.mark.parametrize(
    "found",
    [
        b"my only copy",
        b"my only copy\n",
        b'{"line": 1, "request": "0123456789abcdef", "text": "A"}\n',
        b'{"line": 1, "request": "0123456789abcdef", "te',
        b"[]\n",
    ],
)
def test_a_file_that_is_something_else_is_refused_and_stays(write, tmp_path, found):
    rows, out = rows_of(write({"prompt": "a"})), tmp_path / "out"
    out.write_bytes(found)
    with pytest.raises(ConfigError, match="line 1 is not the answer to these prompts"):
        run(rows, out)
    assert out.read_bytes() == found


def test_more_answers_than_prompts_are_refused(write, tmp_path):
    two = rows_of(write({"prompt": "a"}, {"prompt": "b"}))
    run(two, tmp_path / "out")
    whole = (tmp_path / "out").read_bytes()
    for rest in (whole, whole[:-1]):
        (tmp_path / "out").write_bytes(rest)
        with pytest.raises(ConfigError, match="line 2 is not the answer"):
            run(two[:1], tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == rest


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero", "."])
def test_what_is_no_regular_file_is_refused_unread(write, path):
    """Reading /dev/zero to its end would take all memory."""
    with pytest.raises(ConfigError, match="is no regular file"):
        run(rows_of(write({"prompt": "a"})), Path(path))


def test_two_processes_do_not_write_one_file(write, tmp_path):
    rows = rows_of(write({"prompt": "a"}))
    with (
        AnswerFile(tmp_path / "out", rows),
        pytest.raises(ConfigError, match="is being written by another process"),
        AnswerFile(tmp_path / "out", rows),
    ):
        pass
