"""More timelines worked out by hand, in the form of examples.py: `EXAMPLES`.

The step time is 10 ns + 1 ns for each prefill token + 1 ns for each decode, unless a comment says
more; transfers move a byte in 1 ns, a token is a byte.
"""

from __future__ import annotations

from .examples import STEP, V1, many, one, req, two

EXAMPLES: dict[str, tuple[dict, dict, dict]] = {}


def event(at: int, pool: str, index: int, what: str, **more) -> dict:
    return {"at_ns": at, "pool": pool, "index": index, "what": what, **more}


# --------------------------------------------------------------------------- roles, rule 84

# Prefill replica 1 changes role, from 5 on. It ends request 1: prefill 0-18, transfer 18-26, and is
# gone at 26; decode1 stands in the pool from then on. 0: 14, transfer 14-18, decode 18-29 on
# decode0; 1 decodes there 29-40, 40-51. 2: prefill 20-34 on prefill0, then to decode1 (round robin
# goes on after index 0): transfer 34-38, decode 38-49.
EXAMPLES["roles: drained, then a new replica of the other pool"] = (
    many(
        [V1, V1],
        [V1],
        {"bandwidth_bytes_per_s": 1e9},
        req(4, 2),
        req(8, 3),
        req(4, 2, 20),
        events=[event(5, "prefill", 1, "role", to="decode")],
    ),
    {0: [14, 29], 1: [18, 40, 51], 2: [34, 49]},
    {
        "transfers": [(14, 18, 0), (18, 26, 0), (34, 38, 0)],
        "visited": {
            0: ["prefill0", "decode0"],
            1: ["prefill1", "decode0"],
            2: ["prefill0", "decode1"],
        },
    },
)

# The only decode replica is down from 0 on. 0: chunks 0-14, 14-28; two of three blocks are held
# from then on. 1: one chunk 28-42; no block for the second: it preempts itself and is admitted
# again at 42. That is the state of 28, and nothing comes from outside: the run ends (84).
EXAMPLES["state returns"] = (
    many(
        [dict(V1, total_blocks=3, max_num_batched_tokens=4)],
        [V1],
        {"bandwidth_bytes_per_s": 1e9},
        req(8, 2),
        req(8, 2),
        events=[event(0, "decode", 0, "fail")],
    ),
    {0: [28], 1: []},
    {
        "tokens": [{0: 4}, {0: 4}, {1: 4}, {}, {1: 4}],
        "preempted": {3: [1]},
        "status": {0: "unfinished", 1: "unfinished"},
    },
)

# ------------------------------------------------------------- layer-wise, failed or cancelled

LAYERS = {"bandwidth_bytes_per_s": 1e9, "start": "push", "overlap": "layerwise", "layers": 2}

# Two layers. The target fails at 5: what was sent is lost. Handed over at 14, a plain transfer of
# 4 bytes to decode1, decode 18-29.
EXAMPLES["layer-wise: the target fails during the prefill"] = (
    many([V1], [V1, V1], LAYERS, req(4, 2), events=[event(5, "decode", 0, "fail")]),
    {0: [14, 29]},
    {"transfers": [(0, 5, 0), (14, 18, 0)], "handed_again": {0: 0}},
)

# The target fails at 15, after the prefill's end (14), before the transfer's, max(14 + 2, 4) = 16:
# called off, handed over again at 15: 15-19, decode 19-30.
EXAMPLES["layer-wise: the target fails after the prefill"] = (
    many([V1], [V1, V1], LAYERS, req(4, 2), events=[event(15, "decode", 0, "fail")]),
    {0: [14, 30]},
    {"transfers": [(0, 15, 0), (15, 19, 0)], "handed_again": {0: 1}},
)

# The source fails at 5: the transfer and the reservation are gone; re-routed to prefill1, target
# decode0 again (round robin over one): 5-19, max(19 + 2, 5 + 4) = 21, decode 21-32.
EXAMPLES["layer-wise: the source fails"] = (
    many([V1, V1], [V1], LAYERS, req(4, 2), events=[event(5, "prefill", 0, "fail")]),
    {0: [19, 32]},
    {"transfers": [(0, 5, 0), (5, 21, 0)], "rerouted": {0: 1}, "lost_steps": [(0, 5)]},
)

# The decode side has two blocks, all reserved by 0 (8 bytes). 0 is cancelled at 5, in its step
# 0-15: called off and given back at 15. 1: 15-30, max(30 + 4, 15 + 8) = 34, decode 34-45.
EXAMPLES["layer-wise: cancelled in its prefill"] = (
    many([V1], [dict(V1, total_blocks=2)], LAYERS, req(5, 2, cancel_at_ns=5), req(5, 2)),
    {0: [], 1: [30, 45]},
    {"transfers": [(0, 15, 0), (15, 34, 0)], "status": {0: "cancelled"}},
)

# ------------------------------------------------------------------- last token recomputed (38)


def again(prefill: dict, decode: dict, *requests: dict, **transfer) -> dict:
    spec = two(prefill, decode, 1e9, *requests)
    spec["disaggregated"]["recompute_last_token"] = True
    spec["disaggregated"]["transfer"].update(transfer)
    return spec


# Both are prefilled 0-18 and moved 18-22, also the one with a single token. At 22 each computes its
# last prompt token: P = 2, 12 ns, and emits token 1; then 0 decodes, 11 ns.
EXAMPLES["last token: also o = 1 is handed over"] = (
    again(V1, V1, req(4, 2), req(4, 1)),
    {0: [34, 45], 1: [34]},
    {
        "transfers": [(18, 22, 0), (18, 22, 0)],
        "tokens": [{0: 4, 1: 4}, {0: 1, 1: 1}, {0: 1}],
        "prefill_ends": {0: [18], 1: [18]},
    },
)

# `vllm-v0` with two blocks, both taken by the prompt: that step needs no free block. 18 + 8 + 11.
EXAMPLES["last token: no free block is needed"] = (
    again(
        V1,
        {"policy": "vllm-v0", "block_tokens": 4, "total_blocks": 2, "step_time": STEP},
        req(8, 1),
    ),
    {0: [37]},
    {"free": [98, 0], "preempted": {}},
)

# `static`: 1 ns for each pair. Prefill (vllm-v1) 0-16, one block each, 16-20. The batch's first
# step: P = 2, Q = 4 + 4 (padded), 20 ns. Then D = 2.
EXAMPLES["last token: a static batch"] = (
    again(
        V1,
        dict(V1, policy="static", step_time=dict(STEP, prefill_pair_s=1e-9)),
        req(4, 2),
        req(2, 2),
    ),
    {0: [40, 52], 1: [40, 52]},
    {"tokens": [{0: 4, 1: 2}, {0: 1, 1: 1}, {0: 1, 1: 1}]},
)

# Push: m = 1 reserves too. The decode side has two blocks; 0 (m = 1) has both: prefill 0-15, 8
# bytes 15-23, last token 23-34. 1 reserves at 34: 34-48, 48-52, last token 52-63.
EXAMPLES["last token: push"] = (
    again(V1, dict(V1, total_blocks=2), req(5, 1), req(4, 1), start="push"),
    {0: [34], 1: [63]},
    {"transfers": [(15, 23, 0), (48, 52, 0)], "prefill_ends": {0: [15], 1: [48]}},
)

# Failed between prefill end and that step: it has emitted nothing. Prefill 0-14, moved 14-18, the
# decode replica fails at 20 in its step: re-routed with p = 4: 20-34, waits for the decode replica
# until 40: 40-44, 44-55.
EXAMPLES["last token: nothing emitted before"] = (
    dict(
        again(V1, V1, req(4, 1)),
        events=[event(20, "decode", 0, "fail"), event(40, "decode", 0, "restore")],
    ),
    {0: [55]},
    {
        "transfers": [(14, 18, 0), (40, 44, 0)],
        "rerouted": {0: 1},
        "lost_steps": [(1, 20)],
        "prefill_ends": {0: [14, 34]},
    },
)

# ------------------------------------------------------------------------------ pipelines (55)

TWO = {k: v for k, v in V1.items() if k != "step_time"}
TWO = dict(TWO, stages=[STEP, STEP], max_num_batched_tokens=4)

# Budget 4: 0 and 1 are two batches. A = 0's prompt: 0-14, 14-28. B = 1's: 14-28, 28-42. At 28 A
# leaves, B moves, C = 0's decode starts: over at 39, stage 2 is free at 42: 42-53.
EXAMPLES["pipeline: two batches, the third waits"] = (
    one(TWO, req(4, 2), req(4, 1)),
    {0: [28, 53], 1: [42]},
    {
        "tokens": [{0: 4}, {1: 4}, {0: 1}],
        "stages": [[(0, 14), (14, 28)], [(14, 28), (28, 42)], [(28, 42), (42, 53)]],
    },
)

# Activations: 2 ns + a byte a token. A: 14 + 6 + 14 = 34. B is over at 28 and waits until 34: 34 +
# 6 + 14 = 54. C: 34-45, waits until 54: 54 + 3 + 11 = 68.
EXAMPLES["pipeline: activations are moved"] = (
    one(
        dict(
            TWO,
            activations={"bytes_per_token": 1, "bandwidth_bytes_per_s": 1e9, "latency_s": 2e-9},
        ),
        req(4, 2),
        req(4, 1),
    ),
    {0: [34, 68], 1: [54]},
    {"stages": [[(0, 14), (14, 34)], [(14, 34), (34, 54)], [(34, 54), (54, 68)]]},
)

# Two blocks. At 28 request 0 needs a second one and is the only one visible: it stays (87). At 42
# nothing is in flight: 1, the last, is preempted. C: 42-53, 53-64. 1 knows 5 tokens: 4 in 64-92,
# then the last one, 92-103, 103-114.
EXAMPLES["pipeline: nobody preempts itself beside a batch"] = (
    one(dict(TWO, total_blocks=2), req(4, 2), req(4, 2)),
    {0: [28, 64], 1: [42, 114]},
    {
        "tokens": [{0: 4}, {1: 4}, {0: 1}, {1: 4}, {1: 1}],
        "preempted": {2: [1]},
        "free": [1, 0, 0, 1, 0],
    },
)

# The same with `sarathi` and three blocks; 1 is half-prefilled (2 blocks, 4 of 8 tokens) when it is
# preempted at 42. 0 ends at 86; 1: 86-114, 114-142.
EXAMPLES["pipeline: sarathi"] = (
    one(dict(TWO, policy="sarathi", total_blocks=3, budget_tokens=4), req(4, 3), req(8, 1)),
    {0: [28, 64, 86], 1: [142]},
    {"preempted": {2: [1]}},
)

# The replica fails at 20 with A in stage 2 and B in stage 1: both are lost, their entries end at
# 20. Restored at 30, in the order of running: as above, 30 later.
EXAMPLES["pipeline: two batches lost"] = (
    one(
        TWO,
        req(4, 2),
        req(4, 1),
        events=[event(20, "both", 0, "fail"), event(30, "both", 0, "restore")],
    ),
    {0: [58, 83], 1: [72]},
    {"lost_steps": [(0, 20), (1, 20)], "rerouted": {0: 1, 1: 1}},
)

# Prefill 0-28 and 14-42 as above; a decode replica without stages. The pull of 1 has to wait for
# the end of its step 32-43 (32).
EXAMPLES["pipeline: two pools"] = (
    two(TWO, V1, 1e9, req(4, 2), req(4, 2)),
    {0: [28, 43], 1: [42, 58]},
    {"transfers": [(28, 32, 0), (43, 47, 0)]},
)

# The decode side is the pipeline: prefill 0-18, both moved 18-22; one batch of two, 22-34, 34-46:
# there is nothing for a second one (86).
EXAMPLES["pipeline: one batch takes all"] = (
    two(V1, TWO, 1e9, req(4, 2), req(4, 2)),
    {0: [18, 46], 1: [18, 46]},
    {"tokens": [{0: 4, 1: 4}, {0: 1, 1: 1}]},
)

# `orca`: whole prompts, so 0 and 1, who came together, are one batch: 0-18, 18-36. 2 (at 5) starts
# at 18: 18-32, 36-50. 0 and 1 decode 36-48, 50-62. 2 decodes 50-61, 62-73.
EXAMPLES["pipeline: orca"] = (
    one(dict(TWO, policy="orca"), req(4, 2), req(4, 2), req(4, 2, 5)),
    {0: [36, 62], 1: [36, 62], 2: [50, 73]},
    {"tokens": [{0: 4, 1: 4}, {2: 4}, {0: 1, 1: 1}, {2: 1}]},
)

# Cancelled at 20, in B (stage 1): B keeps its length; no token; gone at 42.
EXAMPLES["pipeline: cancelled in a batch"] = (
    one(TWO, req(4, 2), req(4, 1, cancel_at_ns=20)),
    {0: [28, 53], 1: []},
    {
        "status": {1: "cancelled"},
        "stages": [[(0, 14), (14, 28)], [(14, 28), (28, 42)], [(28, 42), (42, 53)]],
    },
)

# -------------------------------------------------------------------------------- slow-downs

# From 20 on one and a half times: the step 14-25 keeps its length; the next takes 16.5, so 16 ns
# (half to even), 25-41; it is over in (2c) of 41, so 41-52.
EXAMPLES["slow: the step in flight keeps its length"] = (
    one(V1, req(4, 4), events=[event(20, "both", 0, "slow", factor="1.5", until=41)]),
    {0: [14, 25, 41, 52]},
    {},
)

# Only the replica that is slow; it starts slow at 0: 14 x 2.
EXAMPLES["slow: one of two"] = (
    {
        "requests": [req(4, 2), req(4, 2)],
        "replicas": [V1, V1],
        "events": [event(0, "both", 1, "slow", factor=2), event(28, "both", 1, "normal")],
    },
    {0: [14, 25], 1: [28, 39]},
    {},
)

# In a pipeline a batch has the factor of its first stage's start: A (0) normal, B (14) doubled.
# A: 0-14, 14-28. B: 14-42, 42-70. C starts at 42 (normal again from 30 on): over at 53, 70-81.
EXAMPLES["slow: in a pipeline"] = (
    one(TWO, req(4, 2), req(4, 1), events=[event(10, "both", 0, "slow", factor=2, until=30)]),
    {0: [28, 81], 1: [70]},
    {"stages": [[(0, 14), (14, 28)], [(14, 42), (42, 70)], [(42, 70), (70, 81)]]},
)

# Three stages, seven blocks, all taken: 0 (3 blocks) in A, 1 (3) in B, 2 (1) in C. E = 0's second
# chunk at 42, F = 1's at 56. 2 has token 1 at 70 and needs a block: it stays, E and F in flight. At
# 84 E has left: 0, met on the way, has its last chunk (G) although 2 stays again; likewise 1 at 98.
# 0 ends at 126, and 2 decodes: 126-137, 148, 159.
EXAMPLES["pipeline: half-prefilled ones go on beside one that stays"] = (
    one(
        dict(TWO, policy="sarathi", total_blocks=7, budget_tokens=4, stages=[STEP, STEP, STEP]),
        req(12, 1),
        req(12, 1),
        req(4, 2),
    ),
    {0: [126], 1: [140], 2: [70, 159]},
    {
        "tokens": [{0: 4}, {1: 4}, {2: 4}, {0: 4}, {1: 4}, {0: 4}, {1: 4}, {2: 1}],
        "free": [4, 1, 0, 0, 0, 0, 0, 2],
        "preempted": {},
    },
)
