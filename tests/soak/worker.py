"""Generates on demand in a process of its own: one JSON request a line, one JSON answer a line."""

import time

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import DenoisingStep, GenerationOptions
from mlx_diffusiongemma.bench.process import serve
from mlx_diffusiongemma.bench.soak_worker import resident_bytes


def answer(runtime, prompt, options, *, watch):
    """The text; `watch` decodes every canvas on the way."""
    for event in runtime.stream(prompt, options):
        if watch and isinstance(event, DenoisingStep):
            runtime.tokenizer.decode(event.argmax_canvas[0].tolist())
    return event.result.text


def cancel(runtime, prompt, options):
    """Begin an answer and drop it after two denoising steps."""
    stream = runtime.stream(prompt, options)
    for _ in range(3):
        next(stream)
    stream.close()


def main():
    """Serve until standard input ends. Seconds are of the CPU: waiting is not our slowdown."""
    runtime = dg.load("demo")

    def reply(request):
        options = GenerationOptions(seed=request["seed"], max_denoising_steps=request["steps"])
        if request["cancel_first"]:
            cancel(runtime, "Tell me a story about a fox.", options)
        started = time.process_time()
        text = answer(runtime, request["prompt"], options, watch=request["watch"])
        seconds = time.process_time() - started
        return {"seconds": seconds, "resident": resident_bytes(), "text": text}

    serve({}, reply)


if __name__ == "__main__":
    main()
