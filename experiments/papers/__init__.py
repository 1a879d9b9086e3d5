"""The figures of serving papers redone: each YAML is a config and what the paper says of it.

`block.py` reads what the paper says, `evaluate.py` runs it, `values.py` makes numbers of the runs,
`claims.py` judges the orderings that the paper claims, and `page.py` tells it all on one page.
`alternating.py`, `buddy.py` and `staged_orca.py` are policies that only papers compare with.
"""
