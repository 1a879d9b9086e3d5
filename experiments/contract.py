"""What every policy and router must keep, checked on random small workloads.

The checks are the same for those shipped here and for a user's own. A workload is plain JSON, so
that one on which a check fails can be shrunk and printed::

    {"seed": 7, "step_time": {"base_s": 0.01, ...},
     "requests": [{"arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 3, "max_tokens": 8}, ...],
         # and, if wanted, "priority", "deadline_ns" and "cancel_after_ns" of a request
     "replicas": [{"num_blocks": 12, "block_tokens": 4, "max_model_len": 64}, ...],
     "decode_replicas": [...],           # absent where every replica prefills and decodes
     "local_prefill": {"max_uncached_tokens": 9, "max_queue": 1}}   # of these, if wanted
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sim.cluster import Cluster, Predictor
from sim.errors import ConfigError, PhasewiseError, StuckError
from sim.event_loop import simulate
from sim.local_prefill import LocalPrefill
from sim.policy import Policy, ReplicaState, ReplicaView, Router
from sim.pool import PoolSpec
from sim.queue import FirstCome, QueueOrder
from sim.records import CANCELLED, FINISHED, REJECTED, STATES, Decision, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival, Request
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec

Workload = dict[str, Any]


class BreachError(Exception):
    """A check failed; its text says what was found, in one sentence.

    Attributes:
        workload: Where the plain run of a workload itself broke down: that workload. It need not be
            the one under trial, as some checks run variations of it.
    """

    workload: Workload | None = None


@dataclass(frozen=True)
class Subject:
    """What is checked: a policy, or a router over replicas that run a policy.

    Attributes:
        name: As the user wrote it.
        policy: Class of the policy that every replica runs.
        router: Class of the router of every pool.
        options: Options of the policy, or of the router if that is what is checked.
        is_router: Which of the two is checked.
        order: Order of the queues.
        predictor: Guesses output lengths for the order, or None.
    """

    name: str
    policy: type[Policy]
    router: type[Router]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_router: bool = False
    order: QueueOrder = field(default_factory=FirstCome)
    predictor: Predictor | None = None

    def make_policy(self, base: type[Policy] | None = None) -> Policy:
        """A new policy with the options, of class `base` (a subclass of ours) if given."""
        options = {} if self.is_router else self.options
        return (base or self.policy)(**options)

    def make_router(self) -> Router:
        """A new router with the options, which is held to choose among what it is offered."""
        base = self.router

        def pick(router: Router, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
            chosen = base.pick(router, request, replicas)
            if not any(chosen is replica for replica in replicas):
                raise BreachError(f"pick() returns {chosen!r}, which it was not offered")
            return chosen

        watched = type("Watched" + base.__name__, (base,), {"pick": pick})
        made: Router = watched(**(self.options if self.is_router else {}))
        return made


@dataclass(frozen=True)
class Run:
    """One simulation of a workload, in the terms that checks compare.

    Attributes:
        result: All of it.
        times: Token times of each request, ns.
        states: State of each request.
    """

    result: SimulationResult
    times: list[list[int]]
    states: list[int]

    @property
    def decisions(self) -> list[Decision]:
        """Every decision, in order of start, then replica."""
        return sorted(self.result.decisions, key=lambda x: (x.start_ns, x.replica, x.end_ns))

    def fingerprint(self) -> tuple[Any, ...]:
        """Everything that must be the same when the run is repeated."""
        columns = {name: column.tobytes() for name, column in self.result.requests.items()}
        transfers = {name: column.tobytes() for name, column in self.result.transfers.items()}
        return columns, transfers, self.times, self.decisions, self.result.reasons


# A fixed step time, so that prompts, decodes and contexts all show in the clock.
_STEP_TIME = {
    "base_s": 5e-3,
    "prefill_token_s": 2e-5,
    "decode_s": 3e-5,
    "context_token_s": 4e-8,
}
_KV_BYTES_PER_TOKEN = 1000


def random_workload(seed: int) -> Workload:
    """The contract's workload of this number: 1 to 30 requests, mostly short of memory."""
    rng = random.Random(f"contract {seed}")
    longest_prompt = rng.choice((4, 20, 60, 200))
    longest_output = rng.choice((1, 4, 12, 30))
    requests = _requests(rng, rng.randint(1, 30), longest_prompt, longest_output)
    longest = max(r["prompt_tokens"] + r["max_tokens"] for r in requests)
    workload: Workload = {
        "seed": seed,
        "step_time": dict(_STEP_TIME),
        "requests": requests,
        "replicas": _replicas(rng, longest),
    }
    if rng.random() < 0.3:
        workload["decode_replicas"] = _replicas(rng, longest)
        if rng.random() < 0.5:
            shortest = rng.choice((0, longest_prompt // 2))
            workload["local_prefill"] = {"max_uncached_tokens": shortest, "max_queue": 1}
    return workload


def _requests(
    rng: random.Random, n: int, longest_prompt: int, longest_output: int
) -> list[dict[str, int]]:
    gap_ns = rng.choice((0, 1, 10, 50)) * 1e6
    now, requests = 0.0, []
    for _ in range(n):
        output = rng.randint(1, longest_output)
        requests.append(
            {
                "arrival_ns": round(now),
                "prompt_tokens": rng.randint(1, longest_prompt),
                "output_tokens": output,
                "max_tokens": output + rng.choice((0, 0, rng.randint(0, longest_output))),
            }
        )
        if gap_ns and rng.random() < 0.8:  # else they arrive together
            now += rng.expovariate(1 / gap_ns)
    return requests


def _replicas(rng: random.Random, longest: int) -> list[dict[str, int]]:
    replicas = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        block_tokens = rng.choice((1, 4, 16))
        need = -(-longest // block_tokens)
        room = rng.choice((0.8, 1.0, 1.3, 2.0, 8.0))
        replica = {"num_blocks": max(1, round(need * room)), "block_tokens": block_tokens}
        if rng.random() < 0.3:
            replica["max_model_len"] = max(2, round(longest * rng.choice((0.8, 1, 2))))
        replicas.append(replica)
    return replicas


def run(
    subject: Subject,
    workload: Workload,
    *,
    fast_forward: bool = False,
    watch: type[Policy] | None = None,
) -> Run:
    """Simulate the workload with the invariants checked after every step.

    Raises:
        BreachError: The policy raised, got stuck, or broke an invariant.
        ConfigError: This is no workload, or the policy refuses such a replica.
    """
    check_workload(workload)
    arrivals = arrivals_of(workload)
    cluster = cluster_of(subject, workload, watch)
    try:
        result = simulate(
            arrivals,
            cluster,
            seed=workload.get("seed", 0),
            fast_forward=fast_forward,
            check=True,
            record=Record(decisions=True),
        )
    except Exception as error:
        breach = _breach(error)
        if not fast_forward and watch is None:
            breach.workload = workload
        raise breach from error
    states = [int(code) for code in result.requests["state"]]
    times = [result.token_times_ns(i).tolist() for i in range(len(arrivals))]
    return Run(result, times, states)


def check_workload(workload: Workload) -> None:
    """Raise `ConfigError` if this is no workload, as candidates in shrinking often are not."""
    pools = [workload["replicas"], workload.get("decode_replicas", workload["replicas"])]
    sizes = [r[name] for pool in pools for r in pool for name in ("num_blocks", "block_tokens")]
    lengths = [r[x] for r in workload["requests"] for x in ("prompt_tokens", "output_tokens")]
    if not all(pools) or not workload["requests"]:
        raise ConfigError("a workload has at least one request, and one replica in each pool")
    if min(sizes + lengths) < 1:
        raise ConfigError("sizes of pools and blocks, prompts and outputs are at least 1")
    if any(r["max_tokens"] < r["output_tokens"] for r in workload["requests"]):
        raise ConfigError("max_tokens is at least output_tokens")


def _breach(error: Exception) -> BreachError:
    """What the exception of a run says of the policy; configurations refused are no breach."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # before SimPy's
    if isinstance(cause, BreachError):
        return BreachError(str(cause))
    if isinstance(cause, StuckError):
        return BreachError(f"not every request ends: {cause}")
    if isinstance(cause, PhasewiseError):
        raise error
    last = traceback.extract_tb(cause.__traceback__)[-1]
    where = f"({Path(last.filename).name}:{last.lineno}: {last.line})"
    if isinstance(cause, AssertionError):
        return BreachError(f"an invariant broke: {cause or where}")
    return BreachError(f"it raised {type(cause).__name__}: {cause} {where}")


def arrivals_of(workload: Workload) -> list[Arrival]:
    """The requests of a workload, in order."""
    return [
        Arrival(
            r["arrival_ns"],
            r["prompt_tokens"],
            r["output_tokens"],
            r["max_tokens"],
            i,
            priority=r.get("priority", 0),
            deadline_ns=r.get("deadline_ns"),
            cancel_after_ns=r.get("cancel_after_ns"),
        )
        for i, r in enumerate(_in_order(workload))
    ]


def _in_order(workload: Workload) -> list[dict[str, int]]:
    return sorted(workload["requests"], key=lambda r: int(r["arrival_ns"]))


def cluster_of(subject: Subject, workload: Workload, watch: type[Policy] | None = None) -> Cluster:
    """What a workload runs on."""
    transfer = _transfer(workload)

    def pool(name: str, replicas: list[dict[str, int]]) -> PoolSpec:
        specs = [
            ReplicaSpec(
                policy=subject.make_policy(watch),
                num_blocks=r["num_blocks"],
                block_tokens=r["block_tokens"],
                max_model_len=r.get("max_model_len"),
                step_time=LinearStepTime(**workload.get("step_time", {})),
                kv_bytes_per_token=_KV_BYTES_PER_TOKEN,
                host_bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s,
                order=subject.order,
            )
            for r in replicas
        ]
        return PoolSpec(name, specs, subject.make_router())

    if "decode_replicas" not in workload:
        return Cluster(pool("replica", workload["replicas"]), predictor=subject.predictor)
    return Cluster(
        pool("prefill", workload["replicas"]),
        pool("decode", workload["decode_replicas"]),
        transfer,
        subject.predictor,
        local_prefill=_local_prefill(subject, workload),
    )


def _local_prefill(subject: Subject, workload: Workload) -> LocalPrefill | None:
    """Which requests stay on the decode side, where the policy admits them there at all."""
    told = workload.get("local_prefill")
    return LocalPrefill(**told) if told and subject.make_policy().prefills_who_waits else None


def _transfer(workload: Workload) -> TransferSpec:
    """A prompt's KV takes a few steps, whatever their length; so does its way to the host."""
    step_s = max(1e-9, workload.get("step_time", {}).get("base_s", 0.0))
    return TransferSpec(bandwidth_bytes_per_s=_KV_BYTES_PER_TOKEN * 10 / step_s, latency_s=step_s)


class Trial:
    """One workload on a subject; the plain run, which most checks look at, is made once."""

    def __init__(self, subject: Subject, workload: Workload) -> None:
        self.subject = subject
        self.workload = workload

    @cached_property
    def plain(self) -> Run:
        """Every iteration stepped through."""
        return run(self.subject, self.workload)


def every_request_ends(trial: Trial) -> None:
    """Every request finishes, is rejected with a reason and no token, or its client gives up."""
    got = trial.plain
    requests = _in_order(trial.workload)
    for i, state in enumerate(got.states):
        if state == CANCELLED and "cancel_after_ns" in requests[i]:
            continue
        reason = got.result.reasons[got.result.requests["reason"][i]]
        if state == REJECTED and reason and not got.times[i]:
            continue
        if state != FINISHED:
            raise BreachError(f"request {i} ends as {STATES[state]} {reason!r}")


def as_many_tokens_as_asked(trial: Trial) -> None:
    """A finished request has emitted its output_tokens, each exactly once."""
    got = trial.plain
    truth = got.result.requests["output_tokens"]
    emitted = got.result.requests["emitted_tokens"]
    for i, state in enumerate(got.states):
        if state == FINISHED and not len(got.times[i]) == emitted[i] == truth[i]:
            raise BreachError(f"request {i} got {len(got.times[i])} of {truth[i]} tokens")


def time_never_goes_back(trial: Trial) -> None:
    """Token times rise from the arrival on; the steps of a replica follow each other."""
    got = trial.plain
    arrival = got.result.requests["arrival_ns"].tolist()
    for i, times in enumerate(got.times):
        if times != sorted(times) or (times and times[0] <= arrival[i]):
            raise BreachError(f"request {i}, arrived at {arrival[i]}, has token times {times}")
    end: dict[int, int] = {}
    for x in got.decisions:  # by start: a repeated pass of no length stands before its step
        if not end.get(x.replica, 0) <= x.start_ns <= x.end_ns:
            raise BreachError(f"replica {x.replica}: a step from {x.start_ns} to {x.end_ns} ns")
        end[x.replica] = x.end_ns


def memory_is_conserved(trial: Trial) -> None:
    """Free and held blocks always make up the pool (see `Replica.verify`); no step goes below 0."""
    got = trial.plain
    for x in got.decisions:
        total = got.result.replicas[x.replica].total_blocks
        if not 0 <= x.free_after <= total:
            raise BreachError(f"replica {x.replica}: {x.free_after} of {total} blocks free")


def same_seed_same_bytes(trial: Trial) -> None:
    """A second run in the same process gives the same result."""
    first, second = trial.plain, run(trial.subject, trial.workload)
    if first.fingerprint() != second.fingerprint():
        raise BreachError(_difference("first run", first, "second run", second))


def fast_forward_equals_stepping(trial: Trial) -> None:
    """What `ScheduledBatch.repeat` promises holds: every token and decision is the same."""
    stepping = trial.plain
    fast = run(trial.subject, trial.workload, fast_forward=True)
    if stepping.fingerprint() != fast.fingerprint():
        raise BreachError(_difference("stepping", stepping, "fast-forward", fast))


def a_rejected_request_leaves_no_trace(trial: Trial) -> None:
    """A prompt longer than the pool is rejected, and changes no other request's times."""
    workload = trial.workload
    pools = workload["replicas"] + workload.get("decode_replicas", [])
    tokens = 1 + max(r["num_blocks"] * r["block_tokens"] for r in pools)
    requests = _in_order(workload)
    at = len(requests) // 2
    arrival_ns = requests[at]["arrival_ns"] if requests else 0
    hopeless = {"arrival_ns": arrival_ns, "prompt_tokens": tokens}
    hopeless |= {"output_tokens": 1, "max_tokens": 1}
    more = {**workload, "requests": [*requests[:at], hopeless, *requests[at:]]}
    without, among = trial.plain, run(trial.subject, more)
    if among.states[at] != REJECTED:
        raise BreachError(f"a prompt of {tokens} tokens, more than any pool holds, is not rejected")
    others = among.times[:at] + among.times[at + 1 :]
    for i, (a, b) in enumerate(zip(without.times, others, strict=True)):
        if a != b:
            raise BreachError(f"request {i}: {a} without a rejected request beside it, {b} with it")


def a_refusal_changes_nothing(trial: Trial) -> None:
    """A pass that runs nothing leaves the state as it was; who still waits holds nothing."""
    base = trial.subject.policy

    def schedule(self: Policy, state: ReplicaState) -> Any:
        before = _snapshot(state)
        batch = base.schedule(self, state)
        for request in state.waiting:
            if state.kv.held(request) or request.computed_tokens or request.target_tokens:
                raise BreachError(f"{request} waits, and yet holds blocks or counts as begun")
        if not (batch.all_decodes or batch.tokens or state.preempted):
            if _snapshot(state) != before:
                raise BreachError(f"at {state.now_ns} ns a pass ran nothing and changed the state")
            again = base.schedule(self, state)
            if again.all_decodes or again.tokens or state.preempted:
                raise BreachError(
                    f"at {state.now_ns} ns a pass ran nothing, and the next did: {again}"
                )
        return batch

    watched = type("Watched" + base.__name__, (base,), {"schedule": schedule})
    run(trial.subject, trial.workload, watch=watched)


def _snapshot(state: ReplicaState) -> tuple[Any, ...]:
    def of(request: Request) -> tuple[int, int, int, int]:
        held = state.kv.held(request)
        return request.index, request.computed_tokens, request.target_tokens, held

    queues = (state.waiting, state.running, state.prefilling, state.loaded)
    return (state.kv.free_blocks, *([of(request) for request in queue] for queue in queues))


def clients_may_give_up(trial: Trial) -> None:
    """Every third client gives up in the middle of its request: that ends there, others go on."""
    workload, got = trial.workload, trial.plain
    requests = [dict(request) for request in _in_order(workload)]
    for i, request in enumerate(requests):
        if i % 3 == 0 and got.times[i]:
            lasted = got.times[i][-1] - request["arrival_ns"]
            request["cancel_after_ns"] = (lasted + 1) // 2
    changed = {**workload, "requests": requests}
    stepping = run(trial.subject, changed)
    for i, request in enumerate(requests):
        gone = "cancel_after_ns" in request
        if stepping.states[i] not in (FINISHED, REJECTED) and not gone:
            raise BreachError(f"request {i} ends as {STATES[stepping.states[i]]}")
        until = request["arrival_ns"] + request.get("cancel_after_ns", 0)
        if gone and stepping.times[i] and stepping.times[i][-1] > until:
            raise BreachError(f"request {i} has a token after its client gave up at {until} ns")
    fast = run(trial.subject, changed, fast_forward=True)
    if stepping.fingerprint() != fast.fingerprint():
        raise BreachError(_difference("stepping", stepping, "fast-forward", fast))


def output_lengths_stay_hidden(trial: Trial) -> None:
    """Until a first request ends, decisions are those that longer outputs would have got.

    Skipped for policies that say they are clairvoyant, for predictors, and where tokens are
    delivered at the end of a batch: the moment of the last one is not seen from outside then.
    """
    subject, workload = trial.subject, trial.workload
    policy = subject.make_policy()
    if policy.clairvoyant or policy.deliver_at_batch_end or subject.predictor is not None:
        return
    longer = [r | {"output_tokens": r["max_tokens"]} for r in workload["requests"]]
    short = trial.plain
    full = run(subject, {**workload, "requests": longer})
    ends = [
        times[-1]
        for i, times in enumerate(short.times)
        if times and full.times[i] and len(full.times[i]) > len(times)
    ]
    until = min(ends, default=0)
    for x, y in zip(_before(until, short), _before(until, full), strict=False):
        if x != y:
            raise BreachError(
                f"decided by outputs that are still to come: {x} with the true output_tokens, "
                f"{y} if every output_tokens is its max_tokens"
            )


def _before(until_ns: int, run: Run) -> list[Decision]:
    return [x for x in run.decisions if x.start_ns < until_ns]


CHECKS: dict[str, Callable[[Trial], None]] = {
    "every request ends": every_request_ends,
    "as many tokens as asked": as_many_tokens_as_asked,
    "time never goes back": time_never_goes_back,
    "memory is conserved": memory_is_conserved,
    "same seed, same bytes": same_seed_same_bytes,
    "fast-forward equals stepping": fast_forward_equals_stepping,
    "a rejected request leaves no trace": a_rejected_request_leaves_no_trace,
    "a refusal changes nothing": a_refusal_changes_nothing,
    "clients may give up": clients_may_give_up,
    "output lengths stay hidden": output_lengths_stay_hidden,
}
"""Name of each check to its function; a check raises `BreachError` where it fails."""


def _difference(first: str, a: Run, second: str, b: Run) -> str:
    for x, y in zip(a.decisions, b.decisions, strict=False):
        if x != y:
            return f"they differ: {first} {x}, {second} {y}"
    for i, (s, t) in enumerate(zip(a.times, b.times, strict=True)):
        if s != t:
            return f"they differ at request {i}: {first} {s}, {second} {t}"
    return f"{first} and {second} differ in their request columns or transfers"
