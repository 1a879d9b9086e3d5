"""Results for other tools: scheduling decisions as JSON lines, traces for Perfetto, CSV.

`decisions.py` writes and reads the log of decisions, `parting.py` finds where two logs part,
`perfetto.py` makes a trace for ui.perfetto.dev of a bundle, and `export.py` its tables as CSV.
"""
