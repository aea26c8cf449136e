"""Record the fixtures in tests/fixtures from transformers in float32.

    python tools/make_fixtures.py                # everything, in an environment with `parity`
    python tools/make_fixtures.py --only demo    # after the demo model changed

The quantised checkpoints come from mlx-vlm: see make_vlm_fixtures.py.
"""

import argparse
import json
import platform
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mlx_diffusiongemma.parity.recording import record  # noqa: E402
from mlx_diffusiongemma.parity.reference import Reference  # noqa: E402
from mlx_diffusiongemma.parity.suite import SMALL  # noqa: E402
from mlx_diffusiongemma.parity.trace_file import write_trace  # noqa: E402
from mlx_diffusiongemma.parity.workflow import suite_inputs  # noqa: E402
from tools.reference import cases, left_to_right, margins, mutants, passes, replay, tiny  # noqa: E402
from tools.reference.manifest import FIXTURES, sha256, write_arrays, write_section  # noqa: E402
from tools.reference.settings import Settings  # noqa: E402

DEMO = ROOT / "mlx_diffusiongemma" / "demo"
SMALLEST_CHANGE = 1e-3  # of a logit, under every mutant, in one recording at least
VERSIONS = {
    "python": platform.python_version(),
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "numpy": np.__version__,
}


def checkpoints() -> None:
    """Build the tiny models."""
    for model in tiny.TINY_MODELS:
        tiny.build(model, FIXTURES / "checkpoints" / model.name)
    write_section("checkpoints", VERSIONS, {m.name: asdict(m) for m in tiny.TINY_MODELS})


def pass_recordings() -> None:
    """Record both passes of every tiny model, and what each mutant changes in them."""
    facts: dict[str, object] = {}
    for index, (name, pass_cases) in enumerate(cases.PASS_CASES.items()):
        folder = FIXTURES / "checkpoints" / name
        model = passes.load(folder)
        recordings, seeds = {}, {}
        for number, case in enumerate(pass_cases):
            first_seed = 1000 * (index + 1) + 100 * number
            recordings[case.name], seeds[case.name] = passes.record_safely(
                model, case.length, batch=case.batch, first_seed=first_seed
            )
        changes = mutants.sensitivity(folder, list(recordings.values()))
        facts[name] = {"seeds": seeds, "mutants": changes}
        arrays = {f"{case}/{k}": v for case, r in recordings.items() for k, v in r.items()}
        write_arrays(FIXTURES / "passes" / f"{name}.safetensors", arrays, {"model": name})
    for mutant in mutants.MUTANTS:
        largest = max(facts[name]["mutants"][mutant] for name in cases.PASS_CASES)
        if largest < SMALLEST_CHANGE:
            raise SystemExit(f"the recordings do not notice {mutant}: {largest:.1e}")
    write_section("passes", VERSIONS, facts)


def replays() -> None:
    """Record generations of the tiny models, with their draws."""
    facts = {}
    for case in cases.REPLAY_CASES:
        folder = FIXTURES / "checkpoints" / case.model
        model, exact = passes.load(folder), passes.load(folder, torch.float64)
        prompt = passes.draw_inputs(model, case.prompt_length, seed=case.seed)["prompt"]
        settings = case.settings
        if case.eos_in_block is not None:
            settings = _with_eos(model, prompt, case)
        recorded, margin, seed = margins.record_safely(
            model, exact, prompt, settings, first_seed=case.seed
        )
        about = {"model": case.model, "settings": asdict(settings), "seed": seed}
        write_arrays(FIXTURES / "replays" / f"{case.name}.safetensors", recorded, about)
        facts[case.name] = about | {"margins": asdict(margin), "steps": recorded["steps"].tolist()}
        print(f"{case.name}: seed {seed}, steps {recorded['steps']}, {margin}")
    write_section("replays", VERSIONS, facts)


def _with_eos(model, prompt: np.ndarray, case: cases.ReplayCase) -> Settings:
    """Make the end token one that first appears inside the wanted block, not at its edge."""
    recorded, _ = replay.record(model, prompt, case.settings, seed=case.seed)
    length = model.config.canvas_length
    start = case.eos_in_block * length
    earlier = set(recorded["sequence"][:start].tolist())
    inside = recorded["sequence"][start + 2 : start + length - 2].tolist()
    return replace(case.settings, eos_token_id=(next(i for i in inside if i not in earlier),))


def demo() -> None:
    """Record the demo model: generations, and both passes for a prompt longer than its window."""
    shutil.rmtree(FIXTURES / "demo", ignore_errors=True)
    model, exact = passes.load(DEMO), passes.load(DEMO, torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    settings = _demo_settings()
    source = {name: sha256(DEMO / name) for name in ("model.safetensors", "config.json")}
    facts: dict[str, object] = {"source": source}
    for number, (name, text) in enumerate(cases.DEMO_PROMPTS.items()):
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        prompt = np.array([ids], np.int32)
        recorded, margin, seed = margins.record_safely(
            model, exact, prompt, settings, first_seed=100 * (number + 1)
        )
        answer = tokenizer.decode(recorded["sequence"], skip_special_tokens=True)
        about = {"source": source, "settings": asdict(settings), "seed": seed, "text": text}
        write_arrays(FIXTURES / "demo" / f"{name}.safetensors", recorded, about)
        facts[name] = {"margins": asdict(margin), "seed": seed, "answer": answer}
        print(f"{name}: seed {seed}, steps {recorded['steps']}, {answer!r}")
        if name == "sudoku":
            inputs = passes.draw_inputs(model, 1, seed=number) | {"prompt": prompt}
            recorded = passes.record(model, inputs)
            kept = {k: v for k, v in recorded.items() if k in inputs or k.endswith("/logits")}
            arrays = {f"{name}/{k}": v for k, v in kept.items()}
            write_arrays(FIXTURES / "demo" / "passes.safetensors", arrays, {"source": source})
    write_section("demo", VERSIONS, facts)


def answers_left_to_right() -> None:
    """Record the encoder writing: answers of the demo, logits of tiny models past the window."""
    demo_model, exact_demo = passes.load(DEMO), passes.load(DEMO, torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    source = {name: sha256(DEMO / name) for name in ("model.safetensors", "config.json")}
    ends = _demo_settings().eos_token_id
    facts: dict[str, object] = {}
    for name, text in cases.DEMO_PROMPTS.items():
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        recorded, margin = left_to_right.record_safely(
            demo_model, exact_demo, np.array([ids], np.int32), length=128, eos_token_id=ends
        )
        answer = tokenizer.decode(recorded["tokens"], skip_special_tokens=True)
        about = {"source": source, "text": text, "answer": answer}
        write_arrays(FIXTURES / "left_to_right" / f"demo_{name}.safetensors", recorded, about)
        facts[f"demo_{name}"] = {"margins": margin, "answer": answer}
        print(f"{name}: {answer!r}")
    for name, seed in cases.LEFT_TO_RIGHT.items():
        model = passes.load(FIXTURES / "checkpoints" / name)
        ids = passes.draw_inputs(model, 3 + 28, seed=seed)["prompt"]
        prompt, given = ids[:, :3], ids[0, 3:]
        _, logits = left_to_right.write(model, prompt, length=len(given), given=given)
        recorded = {"prompt": prompt, "tokens": given, "logits": logits}
        path = FIXTURES / "left_to_right" / f"{name}.safetensors"
        write_arrays(path, recorded, {"model": name})
        facts[name] = {"seed": seed}
    write_section("left_to_right", VERSIONS, facts)


def _demo_settings() -> Settings:
    values = json.loads((DEMO / "generation_config.json").read_text())
    names = ("max_new_tokens", "max_denoising_steps", "t_min", "t_max")
    return Settings(
        **{name: values[name] for name in (*names, "stability_threshold", "confidence_threshold")},
        entropy_bound=values["sampler_config"]["entropy_bound"],
        eos_token_id=tuple(values["eos_token_id"]),
    )


def traces() -> None:
    """Record traces of the parity kit: what `dgemma-mlx parity record` writes, only smaller."""
    facts = {}
    for name, sampler in cases.TRACES.items():
        folder = DEMO if sampler is None else FIXTURES / "checkpoints" / name
        inputs = suite_inputs(folder, SMALL)
        if sampler is not None:
            asked = [replace(case, settings=sampler) for case in inputs.generations]
            inputs = replace(inputs, generations=tuple(asked))
        trace = record(Reference.open(folder, name), inputs)
        size = write_trace(_new(FIXTURES / "traces" / f"{name}.safetensors"), trace)
        facts[name] = {"steps": [case.steps for case in trace.manifest.generations]}
        print(f"{name}: {size} bytes, {facts[name]}")
    write_section("traces", VERSIONS, facts)


def _new(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path


SECTIONS = {
    "checkpoints": checkpoints,
    "passes": pass_recordings,
    "replays": replays,
    "demo": demo,
    "left_to_right": answers_left_to_right,
    "traces": traces,
}


def main() -> None:
    """Record the sections asked for, in their order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section to record")
    wanted = parser.parse_args().only or list(SECTIONS)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for name, section in SECTIONS.items():
        if name in wanted:
            print(f"recording {name}")
            section()


if __name__ == "__main__":
    main()
