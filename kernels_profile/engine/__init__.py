"""A small real engine on our kernels: one rank of a model, paged KV, steps that policies decide.

`model.py` runs a step of the real model shape with random weights, `steps.py` measures whole steps,
`realtime.py` lets a replica of the simulator run on the card in wall time: the same policies, the
same bookkeeping, and a clock that is not simulated.
"""
