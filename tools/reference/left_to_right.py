"""The reference's encoder as a causal language model: greedy answers, and its logits.

A recording is a flat dict of arrays:

    prompt int32 [1, S], tokens int32 [T]    what it read, then wrote, the end token included
    logits float32 [T, V]                    softcapped, before each token; not kept of answers
"""

import numpy as np
import torch
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache

SAFETY = 20.0  # how many times the best logit must clear the second, in units of float32's noise


class TieError(Exception):
    """An answer hangs on rounding; another prompt will do."""


@torch.no_grad()
def write(
    model: DiffusionGemmaForBlockDiffusion,
    prompt: np.ndarray,
    *,
    length: int,
    eos_token_id: tuple[int, ...] = (),
    given: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits [T, V] in the model's dtype, at most `length`; `given` replaces the argmax.

    Every token is read with the cache of those before it.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    feed, tokens, logits = torch.from_numpy(prompt).long(), [], []
    cap = model.final_logit_softcapping
    for index in range(length):
        encoder = model.model.encoder.language_model
        hidden = encoder(input_ids=feed, cache=cache).last_hidden_state
        row = torch.tanh(model.lm_head(hidden[:, -1]) / cap) * cap
        token = int(row.argmax()) if given is None else int(given[index])
        logits.append(row.numpy()[0])
        tokens.append(token)
        if token in eos_token_id:
            break
        feed = torch.tensor([[token]])
    return np.array(tokens, np.int32), np.stack(logits)


def record_safely(
    model: DiffusionGemmaForBlockDiffusion,
    exact_model: DiffusionGemmaForBlockDiffusion,
    prompt: np.ndarray,
    *,
    length: int,
    eos_token_id: tuple[int, ...] = (),
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """A recording and its margin; TieError where the argmax hangs on float32's rounding."""
    tokens, logits = write(model, prompt, length=length, eos_token_id=eos_token_id)
    _, exact = write(exact_model, prompt, length=len(tokens), given=tokens)
    ordered = np.sort(exact, axis=-1)
    gap = float((ordered[:, -1] - ordered[:, -2]).min())
    noise = float(np.abs(logits - exact).max())
    if gap < SAFETY * noise or not np.array_equal(exact.argmax(-1), tokens):
        raise TieError(f"the best two logits lie {gap:.1e} apart, the noise is {noise:.1e}")
    return {"prompt": prompt, "tokens": tokens}, {"argmax": gap, "noise": noise}
