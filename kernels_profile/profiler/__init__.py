"""The profiler: times our own kernels on the card at hand and writes tables of them.

Start reading in `run.py`, the loop. What is measured is in `shapes.py` (per model and tensor
parallelism), `grids.py` (how finely) and `plan.py` (in which order); how, in `timing.py`; on which
inputs, in `workloads.py`. Nothing but numpy and PyYAML is imported before a point is measured, so
that a plan needs no GPU, no torch and no triton.
"""
