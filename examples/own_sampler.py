"""Write your own sampler on the network alone: keep the most certain half of the canvas each step.

python examples/own_sampler.py "2 + 2 =" [MODEL]
"""

import sys

import mlx.core as mx

from mlx_diffusiongemma import load

prompt = sys.argv[1] if len(sys.argv) > 1 else "2 + 2 ="
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")
model, config = runtime.model, runtime.config

cache = model.make_cache()
model.prefill(mx.array([runtime.tokenizer.encode_prompt(prompt)], mx.int32), cache)

shape, logits = (1, config.canvas_length), None
canvas = mx.random.randint(0, config.vocab_size, shape, key=mx.random.key(1))
for step in range(8):
    logits = model.denoise(canvas, cache, logits)
    certainty, best = mx.max(logits, axis=-1), mx.argmax(logits, axis=-1)
    noise = mx.random.randint(0, config.vocab_size, shape, key=mx.random.key(step + 2))
    canvas = mx.where(certainty >= mx.median(certainty), best, noise)

tokens = best[0].tolist()
ends = runtime.generation_config.eos_token_ids
length = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
print(runtime.tokenizer.decode(tokens[:length]))
