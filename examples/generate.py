"""Ask a model one question and print what it answered and what it cost.

python examples/generate.py "2 + 2 =" [MODEL]
"""

import sys

from mlx_diffusiongemma import GenerationOptions, load

prompt = sys.argv[1] if len(sys.argv) > 1 else "2 + 2 ="
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")
result = runtime.generate(prompt, GenerationOptions(seed=1))

print(result.text)
stats = result.stats
print(f"{stats.generated_tokens} tokens in {sum(stats.denoising_steps)} denoising steps")
