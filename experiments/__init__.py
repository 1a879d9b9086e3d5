"""Experiments: from a YAML file to runs, bundles, tables and figures, and the command `phasewise`.

Start reading in `config.py` (what to run), then `variant.py` (one run) and `bundle.py` (its files).
"""
