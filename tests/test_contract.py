"""docs/contract.md, line by line: where this runtime differs from transformers on purpose."""

import json
import shutil

import mlx.core as mx
import pytest

from mlx_diffusiongemma import GenerationOptions, Runtime, load
from mlx_diffusiongemma.config import read_generation_config
from mlx_diffusiongemma.errors import ConfigError, GenerationError, PromptError
from mlx_diffusiongemma.hub import resolve
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.options import SamplerSettings

STORY = "Tell me a story about a frog."


@pytest.fixture(scope="module")
def demo() -> Runtime:
    return load("demo")


@pytest.fixture
def demo_copy(tmp_path):
    """The demo's folder, to be changed."""
    return shutil.copytree(resolve("demo"), tmp_path / "demo")


def rewrite(path, **changes):
    """Change keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in values.items() if v is not None}))


# Length -----------------------------------------------------------------------------------------


def test_unset_max_tokens_is_2048(demo_copy):
    rewrite(demo_copy / "generation_config.json", max_new_tokens=1)
    assert GenerationOptions().max_tokens == 2048
    assert load(demo_copy).generate("2 + 2 =").finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 31, 32, 33])
def test_max_tokens_is_exact(demo, max_tokens):
    result = demo.generate(STORY, GenerationOptions(max_tokens=max_tokens, seed=1))
    assert (len(result.token_ids), result.finish_reason) == (max_tokens, "length")


def test_the_end_token_and_what_follows_are_not_returned(demo):
    result = demo.generate("2 + 2 =", GenerationOptions(seed=1))
    ends = demo.generation_config.eos_token_ids | demo.tokenizer.eos_token_ids
    assert result.finish_reason == "stop"
    assert not ends & set(result.token_ids)
    assert len(result.token_ids) < demo.config.canvas_length


def test_the_context_is_never_overrun(demo_copy):
    config = json.loads((demo_copy / "config.json").read_text())
    length = config["canvas_length"]
    config["text_config"]["max_position_embeddings"] = 2 * length
    (demo_copy / "config.json").write_text(json.dumps(config))
    runtime = load(demo_copy)
    result = runtime.generate(STORY, GenerationOptions(seed=1))
    assert result.finish_reason == "length"
    assert result.stats.prompt_tokens + len(result.token_ids) <= 2 * length
    with pytest.raises(PromptError):
        runtime.generate("frog " * 2 * length)


# What the checkpoint says -----------------------------------------------------------------------


def test_the_tokenizers_end_tokens_count_too(demo_copy):
    (demo_copy / "generation_config.json").unlink()
    runtime = load(demo_copy)
    assert read_generation_config(demo_copy).sampler == SamplerSettings()
    assert runtime.generate("2 + 2 =", GenerationOptions(seed=1)).finish_reason == "stop"


@pytest.mark.parametrize("sampler", [{"entropy_bound": 0.25}, {"entropy_bound": 1}, {}])
def test_a_sampler_config_may_lack_its_class_and_hold_an_integer(sampler):
    settings = SamplerSettings.from_generation_config({"sampler_config": sampler})
    assert settings.entropy_bound == sampler.get("entropy_bound", 0.1)


def test_keys_of_other_samplers_do_not_stop_a_checkpoint_from_loading(demo_copy):
    rewrite(demo_copy / "generation_config.json", temperature=0.7, top_k=64)
    assert (
        read_generation_config(demo_copy).sampler == read_generation_config(resolve("demo")).sampler
    )


def test_options_that_nothing_reads_are_refused():
    with pytest.raises(TypeError, match="repetition_penalty"):
        GenerationOptions(repetition_penalty=1.1)
    with pytest.raises(ConfigError, match="temperature is 0.7 and mode is 'diffusion'"):
        GenerationOptions(temperature=0.7)


@pytest.mark.parametrize(("retry", "tries"), [(True, 2), (False, 1)])
def test_an_empty_answer_is_tried_once_more_unless_it_is_wanted(demo, monkeypatch, retry, tries):
    """A bias makes the end token certain at position 0."""
    predict, begun = demo.model.predict, []

    def biased(canvas, cache, belief):
        begun.append(belief is None)
        values = predict(canvas, cache, belief).values()
        values[:, 0, 1] = 60.0
        return Logits(values)

    monkeypatch.setattr(demo.model, "predict", biased)
    assert GenerationOptions().retry_empty
    result = demo.generate(STORY, GenerationOptions(seed=1, retry_empty=retry))
    assert (result.text, result.finish_reason) == ("", "empty")
    assert sum(begun) == tries
    assert result.stats.denoising_steps == (len(begun),)


# Numbers ----------------------------------------------------------------------------------------


def test_a_seed_repeats_a_text_whatever_else_draws_numbers(demo):
    options = GenerationOptions(seed=5, max_denoising_steps=4)
    first = demo.generate(STORY, options)
    mx.random.seed(1)
    mx.random.uniform(shape=(3,))
    assert demo.generate(STORY, options).token_ids == first.token_ids
    other = demo.generate(STORY, GenerationOptions(seed=6, max_denoising_steps=4))
    assert other.token_ids != first.token_ids


def test_an_unset_seed_is_reported_and_repeats_the_text(demo):
    first = demo.generate(STORY, GenerationOptions(max_denoising_steps=4))
    again = GenerationOptions(max_denoising_steps=4, seed=first.stats.seed)
    assert demo.generate(STORY, again).token_ids == first.token_ids


@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="about the CPU back-end")
def test_on_the_cpu_the_model_computes_in_float32(demo_copy):
    rewrite(demo_copy / "config.json", dtype="bfloat16")
    assert load(demo_copy).model.model.decoder.norm.weight.dtype == mx.float32


def test_logits_that_are_not_numbers_never_become_text(demo_copy):
    weights = mx.load(str(demo_copy / "model.safetensors"))
    weights["model.decoder.norm.weight"] = weights["model.decoder.norm.weight"] * mx.nan
    mx.save_safetensors(str(demo_copy / "model.safetensors"), weights)
    with pytest.raises(GenerationError, match="denoising step 1"):
        load(demo_copy).generate("2 + 2 =", GenerationOptions(max_tokens=1))


def test_an_image_is_an_error(demo):
    content = [{"type": "image", "url": "frog.png"}, {"type": "text", "text": "What is it?"}]
    with pytest.raises(PromptError, match="image"):
        demo.generate([{"role": "user", "content": content}])


def test_another_sampler_is_refused_by_name():
    with pytest.raises(ConfigError, match="OtherSampler"):
        SamplerSettings.from_generation_config({"sampler_config": {"_cls_name": "OtherSampler"}})
