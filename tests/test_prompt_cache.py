"""A prompt cache on disk: the same answers, nothing read twice, and nothing that does not fit."""

import json
import os
import shutil

import mlx.core as mx
import pytest
from session_talks import Talk, random_runtime, watched

import mlx_diffusiongemma as dg
from mlx_diffusiongemma.hub import resolve
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.prompt_cache import model_fingerprint

QUICK = GenerationOptions(max_tokens=20, max_denoising_steps=2, seed=1)
SYSTEM = {"role": "system", "content": "You are a frog who answers in rhymes. " * 6}


def asked(text):
    return [SYSTEM, {"role": "user", "content": text}]


@pytest.fixture(scope="module")
def demo():
    return watched(dg.load("demo", dtype="float32"))


@pytest.fixture
def saved(demo, tmp_path):
    """A cache saved right after the prompt was read, while the answer is still to come."""
    path = tmp_path / "system.cache"
    session = demo.session()
    events = session.stream(asked("Who are you?"), QUICK)
    next(events)
    assert session.save_cache(path) == path.stat().st_size
    events.close()
    return path


def loaded_talk(runtime, path, **limits):
    talk = Talk(runtime, QUICK, **limits)
    count = talk.session.load_cache(path)
    assert count == talk.session.cached_tokens > 0
    talk.held = list(talk.session._cache.tokens)
    return talk


@pytest.mark.parametrize("rewind_tokens", [0, None, 1000])
def test_a_long_system_prompt_is_read_once(demo, saved, rewind_tokens):
    talk = loaded_talk(demo, saved, rewind_tokens=rewind_tokens)
    turn = talk.turn(asked("2 + 3 ="))
    assert turn.prompt.cached_tokens > 100
    assert turn.prompt.reread_tokens == 0
    talk.turn("Hello")
    talk.turn(asked("Who is your friend?"))


def test_the_same_prompt_reads_nothing(demo, saved):
    turn = loaded_talk(demo, saved).turn(asked("Who are you?"))
    assert turn.prompt.cached_tokens == turn.prompt.prompt_tokens


@pytest.mark.parametrize("window", [2, 8, 32])
def test_a_long_conversation_goes_on_from_a_file(tmp_path, window):
    runtime = random_runtime(tmp_path, seed=window, window=window)
    first = Talk(runtime, QUICK)
    for text in "Who are you?", "2 + 3 =", "Hello " * 20:
        first.turn(text)
    first.session.save_cache(tmp_path / "cache")
    talk = loaded_talk(runtime, tmp_path / "cache")
    assert talk.held == first.held
    turn = talk.turn([*first.session.messages, {"role": "user", "content": "Bye"}])
    assert turn.prompt.cached_tokens == first.turn("Bye").prompt.cached_tokens


def test_it_is_an_ordinary_safetensors_file(demo, saved):
    arrays, metadata = mx.load(str(saved), format="safetensors", return_metadata=True)
    assert set(metadata) == {"format", "version", "model", "template", "marks"}
    assert arrays["tokens"].dtype == mx.int32
    assert len(os.listdir(saved.parent)) == 1, "nothing is left beside it"


def rewrite(path, metadata=(), **changes):
    """Change metadata and arrays of a cache file; None removes an array."""
    arrays, old = mx.load(str(path), format="safetensors", return_metadata=True)
    mx.eval(arrays)
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    with path.open("wb") as file:
        mx.save_safetensors(file, arrays, old | dict(metadata))


def refused(runtime, path):
    session = runtime.session()
    session.generate("2 + 3 =", QUICK)
    before = session.cached_tokens
    with pytest.raises(dg.PromptCacheError) as raised:
        session.load_cache(path)
    assert session.cached_tokens == before, "a file that is refused changes nothing"
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    return str(raised.value)


def test_a_file_that_is_cut_short_is_refused(demo, saved):
    whole = saved.read_bytes()
    for length in 0, 5, 1000, len(whole) // 2, len(whole) - 1:
        saved.write_bytes(whole[:length])
        assert "is no prompt cache, or it was cut short" in refused(demo, saved)


def test_another_file_is_refused(demo, saved):
    saved.write_text("Dear diary, today I met a frog.")
    assert "is no prompt cache" in refused(demo, saved)
    assert "is no prompt cache" in refused(demo, resolve("demo") / "model.safetensors")


def test_another_version_is_named(demo, saved):
    rewrite(saved, {"version": "99"})
    assert "version 99 of the layout, and this program reads version 1" in refused(demo, saved)


def test_another_models_cache_is_refused(demo, saved, tmp_path):
    other = random_runtime(tmp_path, seed=1, window=32)
    assert "another model, or computed in another dtype" in refused(other, saved)


def test_another_template_is_refused(demo, saved, tmp_path):
    folder = shutil.copytree(resolve("demo"), tmp_path / "other")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|turn>system\\n", "<|turn>system\\n\\n"))
    other = dg.load(folder, dtype="float32")
    assert "another tokenizer or chat template" in refused(other, saved)


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": None},
        {"layers.0.keys": None},
        {"layers.1.values": mx.zeros((1, 2, 3, 32))},
        {"layers.2.keys": mx.zeros((1, 1, 5, 64))},
        {"layers.3.keys": mx.zeros((1, 9, 60, 32))},
    ],
    ids=str,
)
def test_damaged_arrays_are_refused(demo, saved, damage):
    rewrite(saved, **damage)
    assert "is damaged" in refused(demo, saved)


def test_nothing_read_is_nothing_saved(demo, tmp_path):
    with pytest.raises(dg.PromptCacheError, match="nothing has been read"):
        demo.session().save_cache(tmp_path / "cache")
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_an_os_error(demo, tmp_path):
    session = demo.session()
    session.generate("2 + 3 =", QUICK)
    with pytest.raises(FileNotFoundError):
        session.save_cache(tmp_path / "nowhere" / "cache")


def test_a_changed_tensor_or_dtype_shows_in_the_fingerprint():
    model = dg.load_model("demo")
    before = model_fingerprint(model)
    assert model_fingerprint(dg.load_model("demo")) == before
    layer = model.model.decoder.layers[1]
    layer.mlp.gate_proj.weight = layer.mlp.gate_proj.weight * 1.001
    assert model_fingerprint(model) != before
    half = dg.load_model("demo")
    half.set_dtype(mx.bfloat16)
    assert model_fingerprint(half) != before


def test_the_config_is_part_of_the_fingerprint(tmp_path):
    folder = shutil.copytree(resolve("demo"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["sliding_window"] = 16
    (folder / "config.json").write_text(json.dumps(config))
    assert model_fingerprint(dg.load_model(folder)) != model_fingerprint(dg.load_model("demo"))
