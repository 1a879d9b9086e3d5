"""Max-min fair flows over links, exactly (rules 39 and 63 to 66, for any paths).

    ends = finish(links, flows)          {id: End}
    links, flows = random_case(seed)
    python -m tests.reference.fluid [CASES]         checks of this module by itself

links   {name: bandwidth} or {name: [[at_ns, bandwidth], ..]}, bytes per second, each change with
        its instant (whole or Fraction), the first at 0 or earlier. Bandwidths are taken as the
        exact value of what is given (int, float, Fraction, decimal text); 0: the link is down.
flows   list of {"id", "links": [names, each once], "bytes", "start"} and, where wanted,
        latency    ns; paid first, uses no bandwidth (39)
        withheld   bytes of the last part, sent behind all others, from release + latency on (66)
        release    the instant (the end of the prefill), None: never released
        call_off   an instant; no effect if the flow's end has been applied by then
        A flow without links is limited by nothing: what may be sent has arrived at once.
End     exact      moment of the last byte (Fraction of ns), None if it never comes
        applied    exact rounded up to a whole ns, at least 1 ns after the start; None likewise
        called_off the instant, if it was called off
        sent       bytes sent in all (Fraction)
        pieces     [(from, to, bytes per ns)], where it had a rate, nothing merged

Between two moments all rates are constant; a moment is where a flow may begin, pauses, goes on,
ends or is called off, or a link changes. Rates are computed anew in each by progressive filling:
all flows that have something to send grow alike until a link of theirs is full.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from dataclasses import dataclass, field
from fractions import Fraction

NS = 10**9


@dataclass
class End:
    """How a flow ended."""

    exact: Fraction | None = None
    applied: int | None = None
    called_off: Fraction | None = None
    sent: Fraction = Fraction(0)
    pieces: list = field(default_factory=list)


def bandwidths(value) -> list[tuple[Fraction, Fraction]]:
    """(instant, bytes per ns), in order of time."""
    if not isinstance(value, (list, tuple)):
        value = [(0, value)]
    changes = [(Fraction(at), Fraction(number) / NS) for at, number in value]
    assert changes
    assert all(a[0] < b[0] for a, b in itertools.pairwise(changes))
    return changes


def bandwidth_at(changes: list, at: Fraction) -> Fraction:
    """The last change up to then counts; before the first, the first."""
    found = changes[0][1]
    for instant, number in changes:
        if instant <= at:
            found = number
    return found


def opens(flow: dict) -> Fraction:
    return Fraction(flow["start"]) + Fraction(flow.get("latency", 0))


def goes_on(flow: dict) -> Fraction | None:
    """From when on the last part may flow."""
    if not flow.get("withheld"):
        return opens(flow)
    if flow.get("release") is None:
        return None
    return max(opens(flow), Fraction(flow["release"]) + Fraction(flow.get("latency", 0)))


def allowed(flow: dict, at: Fraction) -> Fraction:
    """Bytes that may have been sent by then."""
    size = Fraction(flow["bytes"])
    if at < opens(flow):
        return Fraction(0)
    last = goes_on(flow)
    if last is None or at < last:
        return size - Fraction(flow["withheld"])
    return size


def fill(capacity: dict, flows: list[dict]) -> dict:
    """Progressive filling: {id: bytes per ns} for flows that have links."""
    own = {f["id"]: f["links"] for f in flows}
    left = {name: capacity[name] for f in flows for name in f["links"]}
    rate = {f["id"]: Fraction(0) for f in flows}
    growing = [f["id"] for f in flows]
    while growing:
        growing = [k for k in growing if all(left[name] > 0 for name in own[k])]
        users = {name: [k for k in growing if name in own[k]] for name in left}
        steps = [left[name] / len(ks) for name, ks in users.items() if ks]
        if not steps:
            break
        for k in growing:
            rate[k] += min(steps)
        for name, ks in users.items():
            left[name] -= min(steps) * len(ks)
    return rate


def finish(links: dict, flows: list[dict]) -> dict:
    """Every flow to its end."""
    changes = {name: bandwidths(value) for name, value in links.items()}
    ends = {f["id"]: End() for f in flows}
    assert len(ends) == len(flows), "two flows with one id"
    for f in flows:
        assert len(set(f["links"])) == len(f["links"]), "a link twice in a path"
        assert 0 <= Fraction(f.get("withheld") or 0) <= Fraction(f["bytes"])
    given = {Fraction(at) for f in flows for at in (f["start"], opens(f))}  # known moments
    given |= {x for f in flows for x in [goes_on(f)] if x is not None}
    given |= {Fraction(f["call_off"]) for f in flows if f.get("call_off") is not None}
    given |= {at for list_ in changes.values() for at, _ in list_}
    if not given:
        return ends
    now = min(given)
    while True:
        for f in flows:
            end = ends[f["id"]]
            if end.exact is None and end.called_off is None:  # arrived by now?
                last = goes_on(f)
                if not f["links"]:
                    end.sent = allowed(f, now)
                if last is not None and now >= last and end.sent == Fraction(f["bytes"]):
                    end.exact = now
                    end.applied = max(math.floor(Fraction(f["start"])) + 1, math.ceil(now))
                    if Fraction(f["start"]).denominator > 1:  # 1 ns after it, rounded up
                        end.applied = max(math.ceil(Fraction(f["start"]) + 1), math.ceil(now))
            called = f.get("call_off") is not None and Fraction(f["call_off"]) == now
            begun = now >= Fraction(f["start"])
            if called and begun and (end.applied is None or end.applied > now):
                end.exact = end.applied = None
                end.called_off = now
        active = [
            f
            for f in flows
            if ends[f["id"]].called_off is None
            and now >= Fraction(f["start"])
            and ends[f["id"]].sent < allowed(f, now)
        ]
        rate = fill({name: bandwidth_at(c, now) for name, c in changes.items()}, active)
        moments = [at for at in given if at > now]
        moments += [
            now + (allowed(f, now) - ends[f["id"]].sent) / rate[f["id"]]
            for f in active
            if rate[f["id"]] > 0
        ]
        if not moments:
            return ends
        after = min(moments)
        for f in active:
            end = ends[f["id"]]
            end.sent += rate[f["id"]] * (after - now)
            end.pieces.append((now, after, rate[f["id"]]))
            assert end.sent <= allowed(f, now)
        now = after


# ------------------------------------------------------------------------------ random cases


def random_case(seed: int) -> tuple[dict, list[dict]]:
    """Links and flows, small numbers, so that moments tie. All values are JSON's."""
    rng = random.Random(f"fluid {seed}")
    shape = rng.choice(["nics", "nics", "spine", "any"])
    nodes = rng.randint(1, 4)
    speeds = rng.choice([[1], [1, 2], [0.5, 1, 3], [0.1, 0.3, 1, 7]])
    links: dict = {}

    def link(name: str, speed: list) -> None:
        value = rng.choice(speed) * 1e9
        if rng.random() < 0.3:
            times = sorted(rng.sample(range(1, 60), rng.randint(1, 3)))
            down = [0] if rng.random() < 0.3 else []
            list_ = [[0, value]] + [[t, rng.choice(speed + down) * 1e9] for t in times]
            if list_[-1][1] == 0:
                list_.append([times[-1] + rng.randint(1, 30), value])
            links[name] = list_
        else:
            links[name] = value

    for i in range(nodes):
        link(f"out{i}", speeds)
        link(f"in{i}", speeds)
    if shape == "spine":
        link("spine", [2 * x for x in speeds])
    if shape == "any":
        for i in range(rng.randint(1, 3)):
            link(f"x{i}", speeds)
    flows = []
    for i in range(rng.choice([1, 2, 3, 4, 6, 10])):
        path = [f"out{rng.randrange(nodes)}", f"in{rng.randrange(nodes)}"]
        if shape == "spine" and rng.random() < 0.7:
            path.insert(1, "spine")
        if shape == "any":
            path = rng.sample(sorted(links), rng.randint(1, min(4, len(links))))
        flow = {
            "id": i,
            "links": path,
            "bytes": rng.choice([1, 4, 4, 8, 12, rng.randint(1, 60)]),
            "start": rng.choice([0, 0, 5, rng.randint(0, 40)]),
        }
        if rng.random() < 0.4:
            flow["latency"] = rng.choice([0, 1, 3, 10])
        if rng.random() < 0.3:
            parts = rng.choice([1, 2, 4])
            flow["bytes"] *= parts
            flow["withheld"] = flow["bytes"] // parts
            flow["release"] = flow["start"] + rng.choice([0, 1, 5, 20, 60])
            if rng.random() < 0.05:
                flow["release"] = None
                flow["call_off"] = flow["start"] + rng.randint(0, 80)
        if rng.random() < 0.15:
            flow["call_off"] = flow["start"] + rng.choice([0, 1, 4, rng.randint(0, 60)])
        flows.append(flow)
    return links, flows


# ----------------------------------------------------------------------------------- checks

# (links, flows, {id: exact}, {id: applied}), worked out by hand
F = Fraction
HAND = [
    # 4 bytes at 0.5 a ns from 14: alone 14-18 (2 bytes), then 0.25 each; 1 ends last (examples.py).
    (
        {"a": 5e8, "b": 5e8, "d": 5e8},
        [
            {"id": 0, "links": ["a", "d"], "bytes": 4, "start": 14},
            {"id": 1, "links": ["b", "d"], "bytes": 8, "start": 18},
        ],
        {0: F(26), 1: F(38)},
        {0: 26, 1: 38},
    ),
    # Latency 2. 0.25 for 0, then 0.375 for each other: 16 + 4 / 0.375 = 26 2/3, so 27.
    (
        {"a": 25e7, "b": 1e9, "c": 1e9, "d": 1e9},
        [
            {"id": k, "links": ["abc"[k], "d"], "bytes": 4, "start": 14, "latency": 2}
            for k in range(3)
        ],
        {0: F(32), 1: F(80, 3), 2: F(80, 3)},
        {0: 32, 1: 27, 2: 27},
    ),
    # 1 byte a ns until 4, half a byte until 8, down until 10, then 1: 4 + 2 + 0 + 6 = 12 bytes: 16.
    (
        {"a": [[0, 1e9], [4, 5e8], [8, 0], [10, 1e9]]},
        [{"id": 0, "links": ["a"], "bytes": 12, "start": 0}],
        {0: F(16)},
        {0: 16},
    ),
    # 6 of 8 bytes 1-7, a pause, 2 bytes from 18 + 1: 21. The other flow has the link in the pause:
    # 4 bytes 7-11 (it starts at 5: 0.5 each 5-9 (0 has sent 4 + 2 = 6 at 9), then 2 left 9-11).
    (
        {"a": 1e9},
        [
            {
                "id": 0,
                "links": ["a"],
                "bytes": 8,
                "start": 0,
                "latency": 1,
                "withheld": 2,
                "release": 18,
            },
            {"id": 1, "links": ["a"], "bytes": 4, "start": 5},
        ],
        {0: F(21), 1: F(11)},
        {0: 21, 1: 11},
    ),
    # 0 is called off at 6 with 3 bytes sent (0.5 a ns); 1 has the link then: 3 + 5 = 8 bytes at 11.
    # The end of 2 is applied at 1, so its call-off at 1 comes too late; 3's comes in time.
    (
        {"a": 1e9, "b": 1e9},
        [
            {"id": 0, "links": ["a"], "bytes": 8, "start": 0, "call_off": 6},
            {"id": 1, "links": ["a"], "bytes": 8, "start": 0},
            {"id": 2, "links": ["b"], "bytes": F(1, 4), "start": 0, "call_off": 1},
            {"id": 3, "links": ["b"], "bytes": 0, "start": 9, "call_off": 9},
        ],
        {0: None, 1: F(11), 2: F(1, 4), 3: None},
        {0: None, 1: 11, 2: 1, 3: None},
    ),
    # Three links in a row: the classic. 0 over a and b, 1 over a, 2 over b (2 bytes a ns): 0 and 1
    # have 0.5, 2 has 1.5. 2 ends at 8 with 12; 0 and 1 at 16.
    (
        {"a": 1e9, "b": 2e9},
        [
            {"id": 0, "links": ["a", "b"], "bytes": 8, "start": 0},
            {"id": 1, "links": ["a"], "bytes": 8, "start": 0},
            {"id": 2, "links": ["b"], "bytes": 12, "start": 0},
        ],
        {0: F(16), 1: F(16), 2: F(8)},
        {0: 16, 1: 16, 2: 8},
    ),
]


def check(links: dict, flows: list[dict], ends: dict) -> None:
    """What holds for every result: conservation, capacity, and that nobody could have more."""
    changes = {name: bandwidths(value) for name, value in links.items()}
    moments = sorted({t for e in ends.values() for a, b, _ in e.pieces for t in (a, b)})
    for f in flows:
        end = ends[f["id"]]
        if f["links"]:
            assert end.sent == sum(((b - a) * r for a, b, r in end.pieces), Fraction(0))
        assert all(a >= opens(f) for a, _, _ in end.pieces)
        if end.exact is not None:
            assert end.sent == Fraction(f["bytes"])
            assert end.applied - 1 < end.exact or end.applied == f["start"] + 1
            assert end.applied >= max(end.exact, f["start"] + 1)
            assert end.called_off is None
        else:
            assert end.applied is None
            assert f.get("call_off") is not None or f.get("withheld") or end.sent < f["bytes"]
        sent = Fraction(0)  # never more than is allowed; whoever has something to send is served
        for a, b, rate in end.pieces:
            sent += (b - a) * rate
            assert sent <= allowed(f, a)
    for at in moments:
        rate = {f["id"]: r for f in flows for a, b, r in ends[f["id"]].pieces if a <= at < b}
        by = {f["id"]: f for f in flows if f["id"] in rate}
        load = {name: sum(rate[k] for k in by if name in by[k]["links"]) for name in links}
        full = []
        for name in links:
            capacity = bandwidth_at(changes[name], at)
            assert load[name] <= capacity
            full += [name] if load[name] == capacity else []
        for k, f in by.items():  # some full link of its path where nobody is faster: max-min
            assert any(
                name in full and all(rate[j] <= rate[k] for j in by if name in by[j]["links"])
                for name in f["links"]
            )
        for f in flows:  # work conservation: it has a piece whenever it has something to send
            end = ends[f["id"]]
            over = end.exact if end.exact is not None else end.called_off
            if f["links"] and (over is None or at < over) and at >= f["start"]:
                sent = sum(((min(b, at) - a) * r for a, b, r in end.pieces if a < at), Fraction(0))
                assert (sent < allowed(f, at)) == (f["id"] in rate)


def by_bottleneck(capacity: dict, flows: list[dict]) -> dict:
    """The same rates in another way: the link with the least for each user is settled first."""
    left = {name: capacity[name] for f in flows for name in f["links"]}
    rate: dict = {}
    open_ = {f["id"]: f["links"] for f in flows}
    while open_:
        shares = {
            name: n / sum(name in path for path in open_.values())
            for name, n in left.items()
            if any(name in path for path in open_.values())
        }
        name = min(shares, key=lambda x: (shares[x], str(x)))
        for k in [k for k, path in open_.items() if name in path]:
            rate[k] = shares[name]
            for other in open_.pop(k):
                left[other] -= rate[k]
    return rate


def self_check(count: int) -> None:
    for links, flows, exact, applied in HAND:
        ends = finish(links, flows)
        check(links, flows, ends)
        assert {k: e.exact for k, e in ends.items()} == exact, (flows, ends)
        assert {k: e.applied for k, e in ends.items()} == applied, (flows, ends)
    met: dict = {}
    for seed in range(count):
        links, flows = random_case(seed)
        ends = finish(links, flows)
        check(links, flows, ends)
        capacity = {name: bandwidths(value)[0][1] for name, value in links.items()}
        assert fill(capacity, flows) == by_bottleneck(capacity, flows)
        # The order of flows does not matter, nor does cutting a piece in two (an idle change).
        other = finish(
            {k: [*([[0, v]] if not isinstance(v, list) else v)] for k, v in links.items()}
            | {"idle": [[0, 1], [7, 2], [33, 3]]},
            flows[::-1],
        )
        assert all(
            other[k].exact == e.exact and other[k].applied == e.applied and other[k].sent == e.sent
            for k, e in ends.items()
        )
        facts = {
            "between two ns": any(
                e.exact is not None and e.exact.denominator > 1 for e in ends.values()
            ),
            "called off": any(e.called_off is not None for e in ends.values()),
            "called off too late": any(
                f.get("call_off") is not None and ends[f["id"]].exact is not None for f in flows
            ),
            "never": any(e.exact is None and e.called_off is None for e in ends.values()),
            "paused": any(
                a[1] < b[0]
                for e in ends.values()
                for a, b in zip(e.pieces, e.pieces[1:], strict=False)
            ),
            "rate 0": any(r == 0 for e in ends.values() for _, _, r in e.pieces),
            "rate changed": any(len({r for _, _, r in e.pieces}) > 1 for e in ends.values()),
        }
        for name, yes in facts.items():
            met[name] = met.get(name, 0) + yes
    sys.stdout.write(f"fluid: {len(HAND)} by hand, {count} random; {met}\n")


if __name__ == "__main__":
    self_check(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
