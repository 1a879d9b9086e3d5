"""How much load a deployment bears: the highest rate, the fewest replicas, the best setting.

`goal.py` says what has to hold, `varied.py` what is changed, `search.py` and `choice.py` decide
where to look next, `evaluate.py` runs it, and `report.py` tells what came out.
"""
