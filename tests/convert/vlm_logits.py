"""Logits of mlx-vlm for a checkpoint, in float32: `python vlm_logits.py FOLDER INPUTS OUT`.

Runs in an environment with mlx-vlm 0.7.10, on the prompt and canvas in the file INPUTS.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.make_vlm_fixtures import record  # noqa: E402

if __name__ == "__main__":
    folder, inputs, out = map(Path, sys.argv[1:])
    np.savez(out, **record(folder, dict(np.load(inputs))))
