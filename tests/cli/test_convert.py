"""`dgemma-mlx convert`: what can be typed, what it prints, which values it refuses."""

import json

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma.cli import convert as convert_cli
from mlx_diffusiongemma.cli.convert_arguments import (
    RecipeChoice,
    choose_recipe,
    parse_override,
    parse_size,
)
from mlx_diffusiongemma.convert.records import Progress
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.hub import DownloadProgress
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES, weight_bytes

EXPERT = "model.decoder.layers.0.experts.down_proj"
EMBEDDING = "model.decoder.embed_tokens"


@pytest.fixture
def source(tmp_path):
    values = tiny.config_values()
    return str(tiny.write_checkpoint(tmp_path / "source", values, tiny.random_tensors(values)))


def table(folder):
    return json.loads((folder / "config.json").read_text())["quantization"]


def choose(**typed):
    nothing = dict.fromkeys(("name", "bits", "group_size", "mode", "dtype", "search"))
    choice = {"quantize": False, "overrides": (), "dequantize": False} | nothing
    return choose_recipe(RecipeChoice(**choice | typed))


def test_a_dry_run_prints_the_plan_and_makes_nothing(run_here, source, tmp_path):
    run = run_here("convert", source, "--dry-run", "--out", str(tmp_path / "out"))
    assert run.code == 0 and run.err == ""
    for expected in (
        "recipe mixed-4-8: ",
        "model.decoder.layers.*.experts.gate_up_proj.weight",
        "4 bits g64 affine",
        "source tensors: 76 = 76 used + 0 merged + 0 skipped",
        "missing: tokenizer.json, ",
        "of the text model's weights; a token meets 2 of 4",
        "dense MLP ",
        "at work in bfloat16 with 4096 tokens of context",
    ):
        assert expected in run.out
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
    fields = json.loads(run_here("convert", source, "--dry-run", "--json").out)
    assert fields["recipe"] == "mixed-4-8" and fields["output"] is None


def test_a_conversion_prints_errors_and_totals(run_here, source, tmp_path):
    run = run_here("convert", source, "--out", str(tmp_path / "out"))
    assert run.code == 0
    (experts,) = [line for line in run.out.splitlines() if line.startswith("experts")]
    assert experts.split()[2] == "4.5" and 0.01 < float(experts.split()[-1]) < 0.2
    assert "source tensors: 76 = 76 used + 0 merged + 0 skipped" in run.out
    assert "took " in run.out and "100 % of" in run.err
    # Without a tokenizer there is nothing to generate from.
    assert run.out.splitlines()[-1] == f"written to: {tmp_path / 'out'}"
    assert table(tmp_path / "out")[EXPERT]["bits"] == 4
    assert run_here("info", str(tmp_path / "out")).code == 0
    again = run_here("convert", source, "--out", str(tmp_path / "out"))
    assert again.code == 1 and "out" in again.err


def test_the_last_lines_say_where_it_is_and_what_to_type_next(run_here, tmp_path):
    out = tmp_path / "my model"
    run = run_here("convert", "demo", "--out", str(out))
    assert run.out.splitlines()[-2:] == [
        f"written to: {out}",
        f"next: dgemma-mlx generate --model '{out}' \"Tell me a story about a frog.\"",
    ]


def test_json_is_all_there_is_on_standard_output(run_here, source, tmp_path):
    run = run_here("convert", source, "--out", str(tmp_path / "out"), "--json", "-r", "8bit")
    fields = json.loads(run.out)
    assert fields["recipe"] == "8bit" and fields["seconds"] > 0
    assert fields["output"] == str(tmp_path / "out")


def test_the_spellings_of_mlx_lm(run_here, source, tmp_path):
    out = tmp_path / "out"
    flags = ["--q-bits", "3", "--q-group-size", "32", "--q-mode", "affine", "--dtype", "float16"]
    assert not run_here("convert", "--hf-path", source, "--mlx-path", str(out), "-q", *flags).code
    assert table(out) == {"bits": 3, "group_size": 32, "mode": "affine"}
    assert json.loads((out / "config.json").read_text())["dtype"] == "float16"


def test_set_search_shards_vision_and_unknown_arrive(run_here, source, tmp_path):
    tensors = mx.load(f"{source}/model.safetensors") | {"extra": mx.zeros(2)}
    mx.save_safetensors(f"{source}/model.safetensors", tensors)
    out = tmp_path / "out"
    flags = "--set experts=2:32 --set embed*=none --search --max-shard-size 100kB --no-vision"
    refused = run_here("convert", source, "-o", str(out), *flags.split())
    assert refused.code == 1 and "`extra`" in refused.err and not out.exists()
    flags = f"{flags} --allow-unknown".replace("embed*", "*embed*").split()
    run = run_here("convert", source, "-o", str(out), *flags, "--no-verify", "--json")
    fields = json.loads(run.out)
    assert fields["skipped"] == {"is of the image side": 2, "is unknown": 1}
    assert len(list(out.glob("*.safetensors"))) == len(fields["shards"]) > 3
    experts = [part for part in fields["classes"] if part["name"] == "experts"]
    assert experts[0]["search_gain"] > 0 and experts[0]["packing"] == ["2 bits g32 affine"]
    assert EMBEDDING not in table(out) and table(out)["bits"] == 8


def test_dequantize_gives_the_released_names(run_here, source, tmp_path):
    packed, out = tmp_path / "packed", tmp_path / "out"
    assert run_here("convert", source, "-o", str(packed), "-r", "nvfp4").code == 0
    assert run_here("convert", str(packed), "-o", str(out), "--dequantize").code == 0
    assert set(mx.load(str(out / "model.safetensors"))) == set(
        mx.load(f"{source}/model.safetensors")
    )


def test_the_output_can_be_sent_to_the_hub(run_here, source, tmp_path, monkeypatch):
    sent = []

    def upload(folder, repo):
        sent.append((folder, repo))
        return "page"

    monkeypatch.setattr(convert_cli.hub_remote, "check_upload", lambda repo: None)
    monkeypatch.setattr(convert_cli.hub_remote, "upload", upload)
    run = run_here("convert", source, "-o", str(tmp_path / "out"), "--upload-repo", "me/model")
    assert sent == [(tmp_path / "out", "me/model")] and "uploaded to page" in run.err


def test_an_interrupted_run_says_how_to_go_on_and_does(run_here, source, tmp_path, monkeypatch):
    arguments = ("convert", source, "-o", str(tmp_path / "out"), "--max-shard-size", "100kB")

    def interrupt(self, state):
        if state.done_bytes > state.total_bytes / 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(convert_cli._ProgressView, "update", interrupt)
        run = run_here(*arguments)
    assert run.code == 130 and run.out == "" and "--resume" in run.err
    assert not (tmp_path / "out").exists()
    again = run_here(*arguments)
    assert again.code == 1 and "out.partial` holds a conversion that was interrupted" in again.err
    assert run_here(*arguments, "--resume").code == 0
    assert run_here("convert", source, "-o", str(tmp_path / "whole"), *arguments[4:]).code == 0
    files = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("out", "whole")]
    assert files[0] == files[1]


def test_an_interruption_before_anything_is_finished_says_so(
    run_here, source, tmp_path, monkeypatch
):
    def interrupt(self, state):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert_cli._ProgressView, "update", interrupt)
    run = run_here("convert", source, "-o", str(tmp_path / "out"))
    assert run.code == 130 and "nothing is left" in run.err and "--resume" not in run.err
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_going_back_without_images_says_what_transformers_makes_of_it(run_here, source, tmp_path):
    flags = ("-o", str(tmp_path / "out"), "--dequantize")
    assert "random" not in run_here("convert", source, *flags, "--dry-run").out
    run = run_here("convert", source, *flags, "--no-vision")
    (missing,) = (line for line in run.out.splitlines() if line.startswith("missing: "))
    assert missing.endswith("the image side, which transformers fills with random numbers")


def test_a_file_on_its_way_is_named_without_moving_the_bar(monkeypatch):
    shown = []

    class Recorder:
        def update(self, done, label):
            shown.append((done, label))

        def close(self):
            shown.append("closed")

    monkeypatch.setattr(convert_cli, "open_view", lambda total, done: Recorder())
    with convert_cli._ProgressView() as view:
        view.fetching(DownloadProgress(1, 9, "too early"))
        view.update(Progress(40, 100, "norm"))
        view.fetching(DownloadProgress(5, 9, "model-2.safetensors"))
    assert shown == [(40, "norm"), (40, "fetching model-2.safetensors"), "closed"]


def test_recipes_are_explained_with_their_sizes(run_here):
    out = run_here("convert", "--list-recipes").out
    for recipe in RECIPES.values():
        assert f"{recipe.name}" in out and recipe.reason in out and recipe.cost in out
        assert f"takes {weight_bytes(recipe) / 1e9:.1f} GB: {recipe.fit}" in out
    assert "\nmixed-4-8 (default)\n" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "there is no SOURCE"),
        (["a", "--hf-path", "b"], "SOURCE is 'a' and --hf-path is 'b'"),
        (["SOURCE"], "there is no --out"),
        (["SOURCE", "--out", ""], "there is no --out"),
        (["SOURCE", "-r", "5bit"], "no recipe '5bit'"),
        (["SOURCE", "-r", "8bit", "--bits", "4"], "--recipe 8bit and --bits"),
        (["SOURCE", "-r", "8bit", "-q"], "--recipe 8bit and -q"),
        (["SOURCE", "--bits", "four"], "--bits is 'four'"),
        *((["SOURCE", flag, ""], "''") for flag in ("-r", "--bits", "--group-size", "--mode")),
        (["SOURCE", "--bits", "7"], "bits 7"),
        (["SOURCE", "--group-size", "-1"], "--group-size is '-1'"),
        (["SOURCE", "--group-size", "48"], "group_size 48"),
        (["SOURCE", "--mode", "gguf"], "--mode is 'gguf'"),
        (["SOURCE", "--set", "experts"], "--set has 'experts'"),
        (["SOURCE", "--set", "=4"], "--set has '=4'"),
        (["SOURCE", "--set", "experts=x"], "BITS of --set experts=x is 'x'"),
        (["SOURCE", "--set", "experts=4:x"], "GROUP of --set experts=4:x is 'x'"),
        (["SOURCE", "--set", "experts=4:32:gguf"], "--set has 'experts=4:32:gguf'"),
        (["SOURCE", "--set", "experts=4:32:affine:9"], "--set has 'experts=4:32:affine:9'"),
        (["SOURCE", "--set", "nothing=4"], "matches 'nothing'"),
        (["SOURCE", "--set", "experts=none", "--set", "experts=3"], "'experts' decides nothing"),
        (["SOURCE", "--set", "*=8", "--set", "attention=4"], "'attention' decides nothing"),
        (["SOURCE", "--dtype", "float32"], "'float32'"),
        (["SOURCE", "--max-shard-size", "5XB"], "--max-shard-size is '5XB'"),
        (["SOURCE", "--max-shard-size", "0GB"], "--max-shard-size is '0GB'"),
        (["SOURCE", "--dequantize", "-r", "8bit"], "--recipe asks for packing"),
        (["SOURCE", "--dequantize", "--bits", "4"], "--bits asks for packing"),
        (["SOURCE", "--dequantize", "--set", "experts=4"], "--set asks for packing"),
        (["SOURCE", "--low-disk"], "is not a Hub model"),
        (["SOURCE", "--upload-repo", "model"], "`model` cannot be the name"),
        (["SOURCE", "--upload-repo", ""], "`` cannot be the name"),
        (["SOURCE", "--revision", "v1"], "no revision `v1`"),
        (["./nowhere"], "there is no folder `./nowhere`"),
    ],
)
def test_bad_values_are_named(run_here, source, tmp_path, args, message):
    output = [] if "no --out" in message else ["--out", str(tmp_path / "out")]
    run = run_here("convert", *(source if arg == "SOURCE" else arg for arg in args), *output)
    assert run.code == 1 and run.out == ""
    assert run.err.startswith("error: ") and message in run.err.splitlines()[0]
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("experts=3", ("experts", Quantization(3, 64))),
        ("*.o_proj=6:32", ("*.o_proj", Quantization(6, 32))),
        ("experts=4::mxfp4", ("experts", Quantization(4, 32, "mxfp4"))),
        ("re:.*(?<=x)a=8:128:affine", ("re:.*(?<=x)a", Quantization(8, 128))),
        ("router=none", ("router", None)),
        ("router=BF16", ("router", None)),
    ],
)
def test_overrides(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 MB", 5 * 10**8), ("1.5gb", 15 * 10**8), ("123", 123), ("2kB", 2000)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({"quantize": True}, Quantization(4, 64)),
        ({"mode": "mxfp8"}, Quantization(8, 32, "mxfp8")),
        ({"mode": "nvfp4", "quantize": True}, Quantization(4, 16, "nvfp4")),
        ({"group_size": "32"}, Quantization(4, 32)),
        ({"bits": "6"}, Quantization(6, 64)),
    ],
)
def test_what_is_not_typed_has_the_default_of_its_mode(typed, expected):
    assert choose(**typed).for_module(EXPERT) == expected


def test_no_choice_is_the_default_recipe_and_changes_come_on_top():
    assert choose() == RECIPES["mixed-4-8"]
    changed = choose(name="8bit", overrides=("experts=4",), search=True)
    assert changed.for_module(EXPERT) == Quantization(4, 64) and changed.search
    with pytest.raises(ConfigError, match="--search asks for packing"):
        choose(dequantize=True, search=True)
