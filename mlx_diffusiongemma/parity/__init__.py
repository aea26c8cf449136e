"""Prove one model against another with files: record a trace there, check it here.

write_trace(path, record(subject, suite_inputs(folder, SUITES["default"])))
judge(check(read_trace(path), subject)) --> Verdict
"""

from mlx_diffusiongemma.errors import TraceError
from mlx_diffusiongemma.parity.comparison import Comparison, compare
from mlx_diffusiongemma.parity.page import as_page
from mlx_diffusiongemma.parity.recording import Subject, record
from mlx_diffusiongemma.parity.report import as_fields, as_lines
from mlx_diffusiongemma.parity.suite import SUITES
from mlx_diffusiongemma.parity.trace import Trace
from mlx_diffusiongemma.parity.trace_file import read_trace, write_trace
from mlx_diffusiongemma.parity.verdict import Fault, Verdict, judge
from mlx_diffusiongemma.parity.workflow import check, open_subject, record_like, suite_inputs

__all__ = [
    "SUITES",
    "Comparison",
    "Fault",
    "Subject",
    "Trace",
    "TraceError",
    "Verdict",
    "as_fields",
    "as_lines",
    "as_page",
    "check",
    "compare",
    "judge",
    "open_subject",
    "read_trace",
    "record",
    "record_like",
    "suite_inputs",
    "write_trace",
]
