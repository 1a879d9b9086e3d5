"""Many runs over any keys of a config: what to run, where to run it, one data set of what came out.

`definition.py` says which points there are (`axes.py`, `draws.py`: of which values), `points.py`
resolves them into runs, `unit.py` makes one run a row, `executors.py` says who makes them
(`local.py`: processes here, `ray_cluster.py`: a cluster), `dataset.py` keeps the rows, and
`plots.py` draws from these alone.
"""
