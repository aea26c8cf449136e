"""A loop that writes its prompt back, two steps for each of two canvases."""

from types import SimpleNamespace

make_streaming_detokenizer = None


def stream_diffusion_generate(
    model,
    processor,
    tokenizer,
    input_ids,
    pixel_values,
    attention_mask,
    *,
    max_tokens,
    skip_special_token_ids,
    prefill_step_size,
    temperature=0.0,
    diffusion_sampler="confidence-threshold",
    diffusion_full_canvas=False,
    max_denoising_steps=None,
):
    """Yield a result for every token and every finished canvas, as mlx-vlm 0.7.10 does."""
    tokenizer.stopping_criteria.add_eos_token_ids([1])
    detokenizer = make_streaming_detokenizer(processor)
    never_stops = "confidence_threshold" not in model.config.generation_config
    steps = max_denoising_steps if never_stops else 2 + (diffusion_sampler == "entropy-bound")

    def result(*, complete=False):
        return SimpleNamespace(
            prompt_tokens=input_ids.size,
            prompt_tps=input_ids.size / 1e-4,
            diffusion_denoising_steps=2 * steps,
            diffusion_block_complete=complete,
        )

    for half in range(2):
        for token in [*input_ids[0].tolist()[half::2][:max_tokens], 1]:
            if tokenizer.stopping_criteria(token):
                break
            detokenizer.add_token(token, skip_special_token_ids=skip_special_token_ids)
            yield result()
        yield result(complete=True)
    detokenizer.finalize()
    yield result()
