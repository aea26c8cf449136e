"""Print the canvas after every denoising step: accepted tokens as text, the others as dots.

python examples/watch_canvas.py "Tell me a story about a fox." [MODEL]
"""

import sys

from mlx_diffusiongemma import BlockCommitted, DenoisingStep, GenerationOptions, load

prompt = sys.argv[1] if len(sys.argv) > 1 else "Tell me a story about a fox."
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")

for event in runtime.stream(prompt, GenerationOptions(seed=1)):
    if isinstance(event, DenoisingStep):
        tokens, accepted = event.argmax_canvas[0].tolist(), event.accepted[0].tolist()
        cells = (
            runtime.tokenizer.decode([token]) if kept else "·"
            for token, kept in zip(tokens, accepted, strict=True)
        )
        print(f"{event.canvas_index + 1}/{event.step + 1:2}  {''.join(cells)!r}")
    elif isinstance(event, BlockCommitted):
        print(f"committed after {event.denoising_steps} steps: {event.text!r}")
