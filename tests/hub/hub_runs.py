"""A tiny model to serve, and running `hub_client.py` on it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from fake_hub import etag_of

CLIENT = Path(__file__).with_name("hub_client.py")
NAME = "people/tiny-diffusion"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SMALL = {
    "config.json": b'{"model_type": "diffusion_gemma"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode(),
}
WEIGHTS = {
    FIRST: hashlib.shake_256(b"first").digest(300_000),
    SECOND: hashlib.shake_256(b"second").digest(500_000),
}
MODEL = SMALL | WEIGHTS
TOTAL = sum(map(len, MODEL.values()))
SMALL_BYTES = sum(map(len, SMALL.values()))


def start(url, home, env=None, wrap=()):
    """A client whose Hub is at `url` and whose cache is in `home`; it waits for calls."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("HF_") and not name.lower().endswith("_proxy")
    }
    ours = {"HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.Popen(
        [*wrap, sys.executable, str(CLIENT)],
        env=inherited | ours | (env or {}),
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def content_of(answer):
    """The files that a call ended with."""
    return {path.name: path.read_bytes() for path in Path(answer["path"]).iterdir()}


def plans(answer):
    """The announcements among the events of a call."""
    return [event for event in answer["events"] if "commit" in event]


def progress(answer):
    """The progress reports among the events of a call."""
    return [event for event in answer["events"] if "done_bytes" in event]


def leave_partial(cache, name, content):
    """Put into the cache what a broken download of a file leaves."""
    partial = cache.partial(etag_of(name, MODEL[name]))
    partial.parent.mkdir(parents=True)
    partial.write_bytes(content)


def leave_snapshot(cache, commit):
    """Put into the cache what a complete download leaves."""
    cache.snapshot(commit).mkdir(parents=True)
    for name, content in MODEL.items():
        (cache.snapshot(commit) / name).write_bytes(content)
    cache.remember("main", commit)
