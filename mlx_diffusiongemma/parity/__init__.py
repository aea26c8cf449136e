"""Prove one model against another with files: record a trace there, check it here.

record_model("google/...", backend="transformers") --> Trace --> write_trace(path)
read_trace(path) --> check(trace, "my-4bit-folder") --> Comparison, judged by `judge`
"""
