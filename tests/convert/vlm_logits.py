"""Logits of mlx-vlm for a checkpoint, in float32: `python vlm_logits.py FOLDER OUT`.

Runs in an environment with mlx-vlm 0.7.10, on the prompt and canvas of the recorded fixtures.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.make_vlm_fixtures import record  # noqa: E402

if __name__ == "__main__":
    np.savez(sys.argv[2], **record(Path(sys.argv[1])))
