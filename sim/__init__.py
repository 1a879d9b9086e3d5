"""The simulator's core: requests, KV memory, replicas, clusters and the event loop.

Imports nothing else of ours, only simpy and numpy. Start reading in `event_loop.py`.
"""
