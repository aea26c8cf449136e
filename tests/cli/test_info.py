"""`info`: what is said of the demo model, of its quantised kin and of what is no model."""

import json
import shutil
from dataclasses import replace

import pytest

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.cli.info import as_lines
from mlx_diffusiongemma.summary import summarise

DEMO = hub.resolve("demo")
MEMORY = {"dtype": "bfloat16", "weight_bytes": 1000, "total_bytes": 2500, "context": 9}


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the demo model whose config can be changed."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    return folder


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def line(text, label):
    """What stands behind a label."""
    (found,) = (row for row in text.splitlines() if row.startswith(label))
    return found.removeprefix(label).strip()


def test_the_demo_model_is_described_on_standard_output(run_here):
    run = run_here("info", "demo", fake=False)
    assert (run.code, run.err) == (0, "")
    config = json.loads((DEMO / "config.json").read_text())
    text, kinds = config["text_config"], config["text_config"]["layer_types"]
    sliding, full = kinds.count("sliding_attention"), kinds.count("full_attention")
    assert line(run.out, "folder") == str(DEMO)
    assert line(run.out, "architecture") == (
        f"{len(kinds)} layers: {sliding} sliding (window {text['sliding_window']}), {full} full"
    )
    assert f"hidden size {text['hidden_size']}, {text['num_attention_heads']} heads" in run.out
    assert "key-value heads: 2 of 32 (sliding), 1 of 64 (full)" in run.out
    assert "8 experts of 64, 2 for each token" in run.out
    assert f"canvas {config['canvas_length']}, context" in run.out
    assert line(run.out, "quantization") == "none; bfloat16"
    assert line(run.out, "on disk").endswith("in 1 file")
    assert "tensors (vision)" in line(run.out, "not loaded")
    assert line(run.out, "chat template") == "yes"
    assert line(run.out, "defaults").startswith("24 steps, entropy bound 0.1, temperature 0.6 to")
    assert line(run.out, "end tokens") == "1, 50, 106"
    assert max(map(len, run.out.splitlines())) <= max(80, len(str(DEMO)) + 15)


def test_the_classes_add_up_to_the_text_model_and_vision_comes_last(run_here):
    run = run_here("info", "demo", fake=False)
    rows = run.out.split("\n\n")[1].splitlines()[1:]
    parameters = [int(row[19:].split()[0].replace(",", "")) for row in rows]
    assert rows[-1].startswith("vision (not loaded)") and rows[-2].startswith("text model")
    assert sum(parameters[:-2]) == parameters[-2]
    assert {row[19:].split()[1] for row in rows} == {"16"}


def test_json_says_the_same(run_here):
    run = run_here("info", "demo", "--json", fake=False)
    assert run.out.count("\n") == 1 and run.err == ""
    fields = json.loads(run.out)
    loaded = [part for part in fields["classes"] if "vision" not in part["name"]]
    assert sum(part["parameters"] for part in loaded) == fields["parameters"]
    assert fields["architecture"]["full_key_value_heads"] == {"count": 1, "size": 64}
    assert fields["quantization"] is None and fields["chat_template"] is True
    assert fields["not_loaded"]["vision"]["tensors"] > 0
    assert fields["disk"]["bytes"] == (DEMO / "model.safetensors").stat().st_size
    assert fields["memory"]["total_bytes"] > fields["memory"]["weight_bytes"] > 0
    text = run_here("info", "demo", fake=False).out
    assert line(text, "active") == f"{fields['active_parameters']:,} parameters for each token"
    assert line(text, "text model").split()[0] == f"{fields['parameters']:,}"
    assert fields["defaults"]["max_denoising_steps"] == 24


def test_a_quantised_checkpoint_says_which_part_has_which_bits(run_here, tmp_path):
    out = str(tmp_path / "out")
    odd = ("--set", "*.layers.0.*.q_proj=4:32", "--set", "*.layers.1.router.proj=8")
    assert run_here("convert", "demo", "--out", out, *odd).code == 0
    run = run_here("info", out, fake=False)
    lines = run.out.splitlines()
    start = next(i for i, row in enumerate(lines) if row.startswith("quantization"))
    assert [row[15:] for row in lines[start : start + 4]] == [
        "8 bits in groups of 64 (affine): embedding, attention (17 of 18 matrices), dense MLP, "
        "router (1 of 5 matrices), self-conditioning",
        "4 bits in groups of 64 (affine): experts",
        "bfloat16: router (4 of 5 matrices)",
        "4 bits in groups of 32 (affine): attention (1 of 18 matrices)",
    ]
    fields = json.loads(run_here("info", out, "--json", fake=False).out)
    assert fields["packings"][1] == {
        "quantization": {"bits": 4, "group_size": 64, "mode": "affine"},
        "matrices": {"experts": 10},
    }
    assert fields["packings"][2]["quantization"] is None


def test_a_model_without_a_template_or_defaults(run_here, checkpoint):
    (checkpoint / "chat_template.jinja").unlink()
    (checkpoint / "generation_config.json").unlink()
    run = run_here("info", str(checkpoint), fake=False)
    assert line(run.out, "chat template") == line(run.out, "thinking") == "no"
    assert line(run.out, "defaults").startswith("48 steps")


def test_unknown_tensors_and_several_files_are_said():
    summary = replace(summarise(DEMO), unknown=("a.weight", "b.weight"), files=2)
    text = "\n".join(as_lines(summary, MEMORY))
    assert line(text, "unknown") == "2 tensors, first `a.weight`"
    assert line(text, "on disk").endswith("in 2 files")
    assert line(text, "in memory") == "1.0 kB of weights in bfloat16"
    assert "               2.5 kB at work in bfloat16 with 9 tokens of context" in text.splitlines()


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_a_folder_that_is_not_whole_is_an_error_with_a_hint(run_here, checkpoint, broken):
    (checkpoint / broken).unlink()
    run = run_here("info", str(checkpoint), fake=False)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ") and "\n\nhint: " in run.err


def test_a_revision_of_a_folder_is_an_error(run_here):
    run = run_here("info", "demo", "--revision", "v1", fake=False)
    assert run.code == 1 and "`v1`" in run.err
