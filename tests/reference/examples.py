"""Small timelines worked out by hand from the rules, every token time written out.

The step time is 10 ns + 1 ns for each prefill token + 1 ns for each decode, unless a comment says
more. `EXAMPLES` maps a name to (spec, token times, further facts to be found in the log or the
transfers).
"""

from __future__ import annotations

STEP = {"base_s": 10e-9, "prefill_token_s": 1e-9, "decode_s": 1e-9}
V1 = {"policy": "vllm-v1", "block_tokens": 4, "total_blocks": 100, "step_time": STEP}
CACHED = dict(V1, prefix_cache=True)
V0 = dict(
    V1,
    policy="vllm-v0",
    preemption="swap",
    host_blocks=10,
    kv_bytes_per_token=1,
    host_bandwidth=4e9,
)
SG = {"policy": "sglang", "block_tokens": 1, "total_blocks": 100, "step_time": STEP}


def req(p: int, o: int, at: int = 0, content: list | None = None, **more) -> dict:
    request = {"prompt_tokens": p, "output_tokens": o, "arrival_ns": at, **more}
    return dict(request, content=content) if content is not None else request


def one(cfg: dict, *requests: dict, **more) -> dict:
    return {"requests": list(requests), "replicas": [cfg], **more}


def two(prefill: dict, decode: dict, bandwidth: float, *requests: dict) -> dict:
    return {
        "requests": list(requests),
        "disaggregated": {
            "prefill": [prefill],
            "decode": [decode],
            "transfer": {"kv_bytes_per_token": 1, "bandwidth_bytes_per_s": bandwidth},
        },
    }


EXAMPLES: dict[str, tuple[dict, dict, dict]] = {}

# --------------------------------------------------------------------- prefix cache of vllm-v1

# Request 1 is admitted in the pass in which request 0's blocks are scheduled and hits both (44): it
# computes 10 - 8 tokens. Step 1: P = 8 + 2, ends at 20. Step 2: one decode, ends at 31.
EXAMPLES["cached: hit in the same pass"] = (
    one(CACHED, req(8, 2, 0, [[0, 8]]), req(10, 1, 0, [[0, 8], [100, 2]])),
    {0: [20, 31], 1: [20]},
    {"cached": [{0: 0, 1: 8}, {}], "lost": [0, 0], "free": [97, 97]},
)

# Three blocks A B C, all empty. 0 takes A B and frees B, then A: queue C B A. 1 has the same 8
# tokens; the cap is floor(7 / 4) = 1 block (41): it hits A, takes C, computes 4 tokens: 18 + 14 =
# 32. C is a second copy of B. Queue B C A. 2 takes all three, which lose their content: 100 + 22.
# It frees A C B. 3 is like 0 and finds nothing: 200 + 18, and two blocks lose their content.
EXAMPLES["cached: capped, two copies, evicted"] = (
    one(
        dict(CACHED, total_blocks=3),
        req(8, 1, 0, [[0, 8]]),
        req(8, 1, 18, [[0, 8]]),
        req(12, 1, 100, [[50, 12]]),
        req(8, 1, 200, [[0, 8]]),
    ),
    {0: [18], 1: [32], 2: [122], 3: [218]},
    {"cached": [{0: 0}, {1: 4}, {2: 0}, {3: 0}], "lost": [0, 0, 3, 2], "free": [1, 1, 0, 1]},
)

# Four blocks. Both are admitted: P = 15, tokens at 25, no block free. At 25 request 0 needs a
# third block: 1 is preempted, its partial block is taken first (freed first), its full block stays
# cached. At 36, 47 and 58 request 1 (8 known tokens) would need one new block and its own free
# hit, one is free (44). Request 0 ends at 69. Then 1 hits its own block: 4 tokens left, 69 + 14 =
# 83, then decodes. It takes two of 0's blocks, at 69 and 83, last ones first.
EXAMPLES["cached: a preempted request hits its own block"] = (
    one(dict(CACHED, total_blocks=4), req(8, 5), req(7, 4)),
    {0: [25, 36, 47, 58, 69], 1: [25, 83, 94, 105]},
    {
        "cached": [{0: 0, 1: 0}, {}, {}, {}, {}, {1: 4}, {}, {}],
        "preempted": {1: [1]},
        "lost": [0, 0, 0, 0, 0, 1, 1, 0],
    },
)

# Request 0: prefill 0-18, 8 bytes at 1 byte a ns, loaded at 26, decode 26-37. Request 1 has the
# same prompt: one block hit on each side (both capped at 1), 4 tokens computed, 4 bytes moved.
EXAMPLES["cached: only what the decode side lacks is moved"] = (
    two(CACHED, CACHED, 1e9, req(8, 2, 0, [[0, 8]]), req(8, 2, 100, [[0, 8]])),
    {0: [18, 37], 1: [114, 129]},
    {"transfers": [(18, 26, 0), (114, 118, 4)]},
)

# ------------------------------------------------------------------------- swap of vllm-v0

# Four blocks; moving a block takes 1 ns. Both admitted: tokens at 25, no block free. At 25 request
# 1 is swapped out (2 blocks, 2 ns): 25 + 11 + 2 = 38. It needs 2 + 1 free blocks to return; they
# are there when 0 has ended at 71: 71 + 11 + 2 = 84.
EXAMPLES["swap: out and in"] = (
    one(dict(V0, total_blocks=4), req(8, 5), req(7, 4)),
    {0: [25, 38, 49, 60, 71], 1: [25, 84, 95, 106]},
    {"preempted": {1: [1]}, "free": [0, 1, 1, 1, 1, 2, 1, 1]},
)

# The host has one block: 1 is recomputed, 8 tokens from 69 on.
EXAMPLES["swap: recomputed, the host is full"] = (
    one(dict(V0, total_blocks=4, host_blocks=1), req(8, 5), req(7, 4)),
    {0: [25, 36, 47, 58, 69], 1: [25, 87, 98, 109]},
    {"preempted": {1: [1]}},
)

# 8 bytes at 3 bytes a ns are 2.67, so 3 ns. Request 2 (a token, one block) fits from 40 on, but
# nobody is admitted while 1 is swapped out, nor in the pass at 72 that brings it back. At 86 it
# is: prefill only.
EXAMPLES["swap: no admission while something is out"] = (
    one(dict(V0, total_blocks=4, host_bandwidth=3e9), req(8, 5), req(7, 4), req(1, 1, 40)),
    {0: [25, 39, 50, 61, 72], 1: [25, 86, 108, 119], 2: [97]},
    {"preempted": {1: [1]}},
)

# --------------------------------------------------------------------------- cancellation

# Request 1 is cancelled at 20, in the step 18-30 of two decodes: the step keeps its length.
EXAMPLES["cancel: in a step"] = (
    one(V1, req(4, 3), req(4, 3, cancel_at_ns=20)),
    {0: [18, 30, 41], 1: [18]},
    {"status": {1: "cancelled"}},
)

# One at a time. 0 ends at 25, so its cancellation at 25 is too late. 1 is cancelled while it
# waits, 2 at its arrival. 3 starts at 25.
EXAMPLES["cancel: at the end, waiting, at the arrival"] = (
    one(
        dict(V1, max_num_seqs=1),
        req(4, 2, cancel_at_ns=25),
        req(4, 2, cancel_at_ns=10),
        req(4, 1, 5, cancel_at_ns=5),
        req(4, 1, 6),
    ),
    {0: [14, 25], 1: [], 2: [], 3: [39]},
    {"status": {0: "finished", 1: "cancelled", 2: "cancelled"}},
)

# A byte takes 5 ns. 0 is moved 18-58 and cancelled at 20; the transfer ends as planned. The decode
# side has 3 blocks, so 1 (prefilled 18-36) is pulled at 58 only: 58-98, then a decode.
EXAMPLES["cancel: in transfer"] = (
    two(
        dict(V1, max_num_seqs=1),
        dict(V1, total_blocks=3),
        0.2e9,
        req(8, 2, cancel_at_ns=20),
        req(8, 2),
    ),
    {0: [18], 1: [36, 109]},
    {"status": {0: "cancelled"}, "transfers": [(18, 58, 0), (58, 98, 0)]},
)

# A static batch of 0 and 1 (2 waits), delivered at its end. 0, the longest, is cancelled at 20: the
# batch ends with 1, at 30, and 0 has nothing, as when the batch began (77). Then 2: 30 + 14.
EXAMPLES["cancel: a row of a static batch"] = (
    one(
        dict(V1, policy="static", batch_size=2, return_at="batch_end"),
        req(4, 3, cancel_at_ns=20),
        req(4, 2),
        req(4, 1),
    ),
    {0: [], 1: [30, 30], 2: [44]},
    {"status": {0: "cancelled"}, "tokens": [{0: 4, 1: 4}, {0: 1, 1: 1}, {2: 4}]},
)

# --------------------------------------------------------------------------------- sglang

# At 16 two requests arrive; 2 shares 6 tokens with 0 and goes first. The third seat does not
# exist, so 1 is refused (mark). 2 ends in its extend step at 28, which clears the mark: 1 extends
# 28-42, alone. Request 0 decodes only then.
EXAMPLES["sglang: longest prefix first, extend alone"] = (
    one(
        dict(SG, max_running_requests=2),
        req(6, 3, 0, [[0, 6]]),
        req(4, 1, 16, [[20, 4]]),
        req(8, 1, 16, [[0, 6], [50, 2]]),
    ),
    {0: [16, 53, 64], 1: [42], 2: [28]},
    {"cached": [{0: 0}, {2: 6}, {1: 0}, {}, {}], "free": [94, 92, 90, 93, 92]},
)

# Chunks of 4: 4, 4, then 2 of request 0 and both tokens of request 1.
EXAMPLES["sglang: chunked prefill"] = (
    one(dict(SG, chunked_prefill_size=4), req(10, 2), req(2, 1)),
    {0: [42, 53], 1: [42]},
    {"tokens": [{0: 4}, {0: 4}, {0: 2, 1: 2}, {0: 1}]},
)

# 21 slots. At 14 request 1 arrives: 4 + 8 < 17 - 0.7 x 7 = 12.1, so it is admitted; extend 14-28.
# Then both decode, 12 ns each. At 100 both have 7 tokens, one slot is free: 1 (last in running) is
# retracted. Its 6 own slots are freed and the 4 in the tree evicted (20 slots are wanted); the
# ratio becomes 1, since (7 + 20) / (8 + 1) = 3. Request 0 ends at 111. 1 extends 11 tokens, which
# evicts 0's: 111 + 21.
EXAMPLES["sglang: retraction"] = (
    one(dict(SG, total_blocks=21), req(4, 8), req(4, 8, 14)),
    {0: [14, 40, 52, 64, 76, 88, 100, 111], 1: [28, 40, 52, 64, 76, 88, 100, 132]},
    {"preempted": {8: [1]}, "lost": [0] * 8 + [4, 11]},
)

# Request 1 shares 35 tokens with 0, which has no cached match either: it is sorted behind 2 and
# finds the 35 tokens in the next pass. 43 tokens a step: 40 + 3, then 5.
EXAMPLES["sglang: postponed in batch"] = (
    one(
        dict(SG, chunked_prefill_size=43),
        req(40, 1, 0, [[0, 40]]),
        req(40, 1, 0, [[0, 35], [100, 5]]),
        req(3, 1, 0, [[200, 3]]),
    ),
    {0: [53], 1: [68], 2: [53]},
    {"cached": [{0: 0, 2: 0}, {1: 35}]},
)

# ---------------------------------------------------------------------------- closed loop

# The second turn arrives 7 ns after the last token of the first.
EXAMPLES["sessions: think time"] = (
    one(V1, req(4, 2, session="a", turn=0), req(8, 1, session="a", turn=1, delay_ns=7)),
    {0: [14, 25], 1: [50]},
    {},
)

# One at a time; recorded arrivals count for nothing. 1 is rejected at 14, and what it causes joins
# the same phase.
EXAMPLES["sessions: concurrency 1, a rejected request frees its place"] = (
    one(
        dict(V1, total_blocks=2), req(4, 1, 1000), req(20, 1, 1000), req(4, 1, 1000), concurrency=1
    ),
    {0: [14], 1: [], 2: [28]},
    {"status": {1: "rejected"}},
)

# Turn 1 of session a is rejected at 20. `continue`: turn 2 arrives at 25. `skip`: it never does,
# and the place goes to the last request at 20.
TURNS = [
    req(4, 1, session="a"),
    req(20, 1, session="a", delay_ns=6),
    req(4, 1, session="a", delay_ns=5),
    req(4, 1),
]
SMALL = dict(V1, total_blocks=2)
EXAMPLES["sessions: on_failed_turn continue"] = (
    one(SMALL, *TURNS, concurrency=1, on_failed_turn="continue"),
    {0: [14], 1: [], 2: [39], 3: [53]},
    {"status": {1: "rejected"}},
)
EXAMPLES["sessions: on_failed_turn skip"] = (
    one(SMALL, *TURNS, concurrency=1, on_failed_turn="skip"),
    {0: [14], 1: [], 2: [], 3: [34]},
    {"status": {1: "rejected", 2: "skipped"}},
)

# ------------------------------------------------------------------------ changing clusters

# Two replicas, a request on each; prefill 0-14, decodes 11 ns. Replica 0 fails at 20, in the step
# 14-25 of request 0, which has one token of four. It is re-routed to replica 1 (the only one up):
# p = 5, o = 3. There the step 14-25 ends; at 25 one decode and 5 prefill tokens: 16 ns, 41.
# Then both decode, 12 ns: 53 (1 has its four), then 0 alone: 64.
EXAMPLES["failures: re-routed with a token"] = (
    {
        "requests": [req(4, 4), req(4, 4)],
        "replicas": [V1, V1],
        "events": [{"at_ns": 20, "pool": "both", "index": 0, "what": "fail"}],
    },
    {0: [14, 41, 53, 64], 1: [14, 25, 41, 53]},
    {
        "tokens": [{0: 4}, {1: 4}, {0: 1}, {1: 1}, {1: 1, 0: 5}, {1: 1, 0: 1}, {0: 1}],
        "lost_steps": [(2, 20)],
        "rerouted": {0: 1, 1: 0},
    },
)

# One replica, failed from 5 to 30. Request 0's step 0-14 is lost at 5; it waits at the router, as
# does request 1, which arrives at 10. At 30 both are routed, in order of coming: P = 6, 46.
EXAMPLES["failures: waiting at the router"] = (
    one(
        V1,
        req(4, 1),
        req(2, 1, 10),
        events=[
            {"at_ns": 5, "pool": "both", "index": 0, "what": "fail"},
            {"at_ns": 30, "pool": "both", "index": 0, "what": "restore"},
        ],
    ),
    {0: [46], 1: [46]},
    {"lost_steps": [(0, 5)], "rerouted": {0: 1, 1: 0}, "tokens": [{0: 4}, {0: 4, 1: 2}]},
)

# Prefill 0-14, transfer of 4 bytes, 5 ns each: 14-34. Decode replica 0 fails at 20: called off, the
# source keeps its block, and request 0 is handed to decode replica 1 (added at 20, before the
# failure in the list) at 20: transfer 20-40, decode 40-51.
# Request 1 arrives at 40: prefill 40-54, round robin goes on after index 1: 0 is down, so 1 again.
# The prefill replica fails at 60, its transfer 54-74 with it: 1 has one token of two, and as p = 5,
# o = 1 it is prefilled again after the restart at 70: 70-85, and has finished there.
EXAMPLES["failures: handed over again, source lost"] = (
    {
        **two(V1, V1, 0.2e9, req(4, 2), req(4, 2, 40)),
        "events": [
            {"at_ns": 20, "pool": "decode", "index": 0, "what": "add"},
            {"at_ns": 20, "pool": "decode", "index": 0, "what": "fail"},
            {"at_ns": 60, "pool": "prefill", "index": 0, "what": "fail"},
            {"at_ns": 70, "pool": "prefill", "index": 0, "what": "restore"},
        ],
    },
    {0: [14, 51], 1: [54, 85]},
    {
        "transfers": [(14, 20, 0), (20, 40, 0), (54, 60, 0)],
        "rerouted": {0: 0, 1: 1},
        "handed_again": {0: 1, 1: 0},
    },
)

# Draining 0 from 5 on: it ends request 0; requests 1 and 2 go to 1, P = 8, 18 ns.
EXAMPLES["failures: drained"] = (
    {
        "requests": [req(4, 2), req(4, 1, 6), req(4, 1, 6)],
        "replicas": [V1, V1],
        "events": [{"at_ns": 5, "pool": "both", "index": 0, "what": "drain"}],
    },
    {0: [14, 25], 1: [24], 2: [24]},
    {"tokens": [{0: 4}, {1: 4, 2: 4}, {0: 1}]},
)
# --------------------------------------------------------------------------------- links


def many(prefill: list, decode: list, transfer: dict, *requests: dict, **more) -> dict:
    return {
        "requests": list(requests),
        "disaggregated": {
            "prefill": prefill,
            "decode": decode,
            "transfer": {"kv_bytes_per_token": 1, **transfer},
        },
        **more,
    }


def shared(bandwidth: float, **more) -> dict:
    return {"bandwidth_bytes_per_s": bandwidth, "sharing": "max-min", **more}


# Two prefill replicas, one decode replica, 0.5 bytes a ns. 0: prefill 0-14, 4 bytes. 1: prefill
# 0-18, 8 bytes. 14-18 alone: 2 bytes. From 18 on 0.25 each: 0's other 2 bytes take 8, to 26; 1 has
# sent 2 then, 6 more alone take 12, to 38. Decodes 26-37 and 38-49.
EXAMPLES["links: the incoming link is shared"] = (
    many([V1, V1], [V1], shared(0.5e9), req(4, 2), req(8, 2)),
    {0: [14, 37], 1: [18, 49]},
    {"transfers": [(14, 26, 0), (18, 38, 0)]},
)

# Three prefill replicas, each with a request of 4 tokens, 0-14; 1 byte a ns, latency 2; replica 0's
# NIC has 0.25. From 16 on: 0.25, and 0.375 for each of the two others: 4 / 0.375 = 10.67, so 27.
# 0: 16 + 16 = 32. The decode replica runs 1 and 2 27-39, then 0 39-50.
EXAMPLES["links: max-min, between two ns"] = (
    many(
        [dict(V1, nic_bytes_per_s=0.25e9), V1, V1],
        [V1],
        shared(1e9, latency_s=2e-9),
        *[req(4, 2) for _ in range(3)],
    ),
    {0: [14, 50], 1: [14, 39], 2: [14, 39]},
    {"transfers": [(14, 32, 0), (14, 27, 0), (14, 27, 0)]},
)

# Two transfers share the incoming link of decode replica 0, 0.25 each from 14 on. It fails at 20:
# both have 4 bytes to send again, to replica 1 now, 0.25 each: 36. Decodes 36-48.
EXAMPLES["links: called off"] = (
    many(
        [V1, V1],
        [V1, V1],
        shared(0.5e9) | {"latency_s": 0},
        req(4, 2),
        req(4, 2),
        events=[
            {"at_ns": 14, "pool": "decode", "index": 1, "what": "fail"},
            {"at_ns": 15, "pool": "decode", "index": 1, "what": "restore"},
            {"at_ns": 20, "pool": "decode", "index": 0, "what": "fail"},
        ],
    ),
    {0: [14, 48], 1: [14, 48]},
    {
        "transfers": [(14, 20, 0), (14, 20, 0), (20, 36, 0), (20, 36, 0)],
        "handed_again": {0: 1, 1: 1},
    },
)

# Both prefilled 0-18. blocks_decode: one transfer at a time, 18-22 and 22-26, and no step beside
# one: both decode 26-38.
EXAMPLES["links: blocks_decode"] = (
    many(
        [V1],
        [V1],
        {"bandwidth_bytes_per_s": 1e9, "blocks_decode": True},
        req(4, 2),
        req(4, 2),
    ),
    {0: [18, 38], 1: [18, 38]},
    {"transfers": [(18, 22, 0), (22, 26, 0)]},
)

# ---------------------------------------------------------------------------------- push

# The decode side has two blocks; 0 reserves both, so 1 is not admitted before 0 has ended. 0:
# prefill 0-15, 8 bytes, 15-23, decode 23-34. 1: prefill 34-48, transfer 48-52, decode 52-63.
EXAMPLES["push: admission waits for the target"] = (
    many(
        [V1],
        [dict(V1, total_blocks=2)],
        {"bandwidth_bytes_per_s": 1e9, "start": "push"},
        req(5, 2),
        req(4, 2),
    ),
    {0: [15, 34], 1: [48, 63]},
    {"transfers": [(15, 23, 0), (48, 52, 0)]},
)

# 4 layers, 8 bytes at 1 byte a ns, latency 1: max(18 + 1 + 2, 0 + 1 + 8) = 21. The same with links:
# 6 bytes 1-7, a pause, 2 bytes 19-21.
LAYERS = {"start": "push", "overlap": "layerwise", "layers": 4, "latency_s": 1e-9}
for SHARING in ("none", "max-min"):
    EXAMPLES[f"push: layer-wise, sharing {SHARING}"] = (
        many([V1], [V1], {"bandwidth_bytes_per_s": 1e9, "sharing": SHARING, **LAYERS}, req(8, 2)),
        {0: [18, 32]},
        {"transfers": [(0, 21, 0)]},
    )

# Two layers, no latency, 0.5 bytes a ns, one incoming link. First halves, 2 and 4 bytes: 0.25 each
# until 8, then 1 alone until 12. 0's second half 14-18, alone; 1's 18-26. Decodes 18-29, 29-40.
EXAMPLES["push: layer-wise, the link shared"] = (
    many(
        [V1, V1],
        [V1],
        shared(0.5e9, start="push", overlap="layerwise", layers=2),
        req(4, 2),
        req(8, 2),
    ),
    {0: [14, 29], 1: [18, 40]},
    {"transfers": [(0, 18, 0), (0, 26, 0)]},
)

# The target fails at 5: handed over when the prefill has ended, to replica 1, as under pull.
EXAMPLES["push: the target failed during the prefill"] = (
    many(
        [V1],
        [V1, V1],
        {"bandwidth_bytes_per_s": 1e9, "start": "push"},
        req(4, 2),
        events=[{"at_ns": 5, "pool": "decode", "index": 0, "what": "fail"}],
    ),
    {0: [14, 29]},
    {"transfers": [(14, 18, 0)], "handed_again": {0: 0}},
)

# 0 is cancelled when its prefill ends: not sent. 1 is cancelled at 16, in its first step 14-28, and
# gives its reservation back at 28; 2 reserves then. 2: 28-42, sent 42-46, decode 46-57.
EXAMPLES["push: cancelled"] = (
    many(
        [dict(V1, max_num_seqs=1)],
        [dict(V1, total_blocks=2)],
        {"bandwidth_bytes_per_s": 1e9, "start": "push"},
        req(4, 2, cancel_at_ns=14),
        req(4, 2, cancel_at_ns=16),
        req(4, 2),
    ),
    {0: [14], 1: [], 2: [42, 57]},
    {"transfers": [(42, 46, 0)], "status": {0: "cancelled", 1: "cancelled"}},
)

# -------------------------------------------------------------------------------- counting

# (prompts as lists of block ids, capacity, policy, hit blocks of each), blocks of one token; the
# cap leaves the last block of each prompt to be computed (41).
COUNTS: list[tuple[list[str], int | None, str, list[int]]] = [
    # Never more than n - 1 blocks; the last prompt differs at its start, though not behind it.
    (["abc", "abc", "abcd", "xbc"], None, "lru", [0, 2, 3, 0]),
    # Queue c b a; d pushes out c: b a d. `abc` hits a b, takes c, pushes out d: c b a.
    # `d` pushes out c: b a d. `ab` hits a (capped).
    (["abc", "d", "abc", "d", "ab"], 3, "lru", [0, 0, 2, 0, 1]),
    # Two blocks kept of four, everything else evicted (43).
    (["xy", "abcd", "xy", "abz"], 2, "lru", [0, 0, 0, 0]),
    (["xy", "abcd", "abz"], 2, "lru", [0, 0, 2]),
    # fifo: b a, then d: b a d. `ab` hits a and changes nothing. e pushes out b: a d e. f pushes
    # out a.
    (["ab", "d", "ab", "e", "f", "ab"], 3, "fifo", [0, 0, 1, 0, 0, 0]),
    # lru in the same case: d b a after `ab`, e pushes out d, f pushes out b, a is still there.
    (["ab", "d", "ab", "e", "f", "ab"], 3, "lru", [0, 0, 1, 0, 0, 1]),
    # lfu: a and b were held twice, d once: d goes for e, e for f.
    (["ab", "ab", "d", "e", "f", "ab"], 3, "lfu", [0, 1, 0, 0, 0, 1]),
]
