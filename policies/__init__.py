"""Policies, routers, orders, predictors, autoscalers, role switchers: named in the dicts below.

To add a policy, write a file like `orca.py` and name its class in `POLICIES`; the fields of the
dataclass are its options in a config. Names are written with hyphens, options with underscores.
"""

from policies.affinity import ConsistentHash, SessionAffinity
from policies.cache_routing import KVAware, LeastKV, PrefixAware
from policies.class_placement import ClassAware
from policies.conductor import Conductor
from policies.distserve import DistServe
from policies.fair_order import VirtualTokenCounters
from policies.llumnix import Evacuation, Llumnix
from policies.multi_level_order import MultiLevelQueue
from policies.orca import Orca
from policies.orders import Deadline, Priority, ShortestFirst, ShortestRemaining
from policies.predictors import Bucket, Noisy, Oracle
from policies.prefill_first import PrefillFirst
from policies.roles import Pressure
from policies.routing import LeastOutstanding, LeastTokens, PowerOfTwo, RandomChoice, RoundRobin
from policies.sarathi import Sarathi
from policies.scaling import QueueLength, Schedule, SLOHeadroom, Utilisation
from policies.sglang import LongestPrefix
from policies.static_batching import StaticBatching
from policies.token_budget import TokenBudget
from sim.errors import CONFIG_NAME
from sim.queue import FirstCome

POLICIES = {
    "static": StaticBatching,
    "orca": Orca,
    "vllm-v0": PrefillFirst,
    "vllm-v1": TokenBudget,
    "sarathi": Sarathi,
    "sglang": LongestPrefix,
    "distserve": DistServe,
}

ROUTERS = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "least-outstanding": LeastOutstanding,
    "least-tokens": LeastTokens,
    "power-of-two": PowerOfTwo,
    "least-kv": LeastKV,
    "session-affinity": SessionAffinity,
    "consistent-hash": ConsistentHash,
    "prefix-aware": PrefixAware,
    "kv-aware": KVAware,
    "class-aware": ClassAware,
    "mooncake": Conductor,
}

ORDERS = {
    "fcfs": FirstCome,
    "sjf": ShortestFirst,
    "srtf": ShortestRemaining,
    "priority": Priority,
    "edf": Deadline,
    "mlfq": MultiLevelQueue,
    "vtc": VirtualTokenCounters,
}

AUTOSCALERS = {
    "queue-length": QueueLength,
    "utilisation": Utilisation,
    "slo-headroom": SLOHeadroom,
    "schedule": Schedule,
}

ROLE_SWITCHERS = {"pressure": Pressure}

MIGRATORS = {"llumnix": Llumnix, "evacuation": Evacuation}

PREDICTORS = {"oracle": Oracle, "noisy": Noisy, "bucket": Bucket}

_ALL = (POLICIES, ROUTERS, ORDERS, AUTOSCALERS, ROLE_SWITCHERS, MIGRATORS, PREDICTORS)
for _named in _ALL:
    for _name, _class in _named.items():
        setattr(_class, CONFIG_NAME, _name)  # what messages call it: `sim.errors.called`
