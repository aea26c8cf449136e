"""The recorders in tools/ are importable here: their cases and, with torch, the live reference."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
