"""Each misuse of a config gives one line that says where, what was found, and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.config import load
from sim.errors import ConfigError

BASE = """
workload: {trace: t.csv, max_tokens: 64}
model: llama-3.1-8b
policy: sarathi
step_time: {model: linear, base_s: 0.01}
"""
POOLS = """
pools:
  prefill: {replicas: 1}
  decode: {replicas: 1}
  transfer: {bandwidth_bytes_per_s: 5e10}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,8\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TRACE)
    return tmp_path


def refusal(folder: Path, text: str, settings: tuple[str, ...] = ()) -> str:
    path = folder / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path, settings)
    line = str(error.value)
    assert "\n" not in line
    return line


def with_policy(policy: str) -> str:
    return BASE.replace("policy: sarathi", f"policy: {policy}")


MISUSES = [
    # names and keys
    (
        with_policy("{name: sarathi, budget_token: 256}"),
        "c.yaml: policy.budget_token: sarathi has no such option; try budget_tokens",
    ),
    (with_policy("saratih"), "c.yaml: policy: no policy 'saratih'; try sarathi"),
    (
        BASE.replace("model: llama-3.1-8b", "modle: llama-3.1-8b"),
        "c.yaml: modle: a config has no such key; try model",
    ),
    (
        BASE.replace("max_tokens: 64", "max_token: 64"),
        "c.yaml: workload.max_token: workload has no such option; try max_tokens",
    ),
    (
        BASE + "kv: {block_token: 8}",
        "c.yaml: kv.block_token: kv has no such option; try block_tokens",
    ),
    (BASE + "router: round-robbin", "c.yaml: router: no router 'round-robbin'; try round-robin"),
    (BASE + "order: sfj", "c.yaml: order: no order 'sfj'; try sjf"),
    (
        BASE + "order: {name: fcfs, reverse: true}",
        "c.yaml: order.reverse: fcfs has no such option; there is none to choose",
    ),
    (BASE + "engine: vllm-0.20", "c.yaml: engine: no engine 'vllm-0.20'; try vllm-0.12"),
    (
        BASE.replace("model: linear", "model: liner"),
        "c.yaml: step_time.model: no step-time model 'liner'; try linear",
    ),
    (
        BASE.replace("base_s: 0.01", "base: 0.01"),
        "c.yaml: step_time.base: linear has no such option; try base_s",
    ),
    (
        BASE.replace("base_s: 0.01", "base_s: .nan"),
        "c.yaml: step_time.base_s: nan: expected a finite number",
    ),
    (
        BASE.replace("base_s: 0.01", "base_s: 0.01, decode_s: -0.02"),
        "c.yaml: step_time.decode_s: -0.02: expected at least 0",
    ),
    (
        BASE.replace("base_s: 0.01", "base_s: -1"),
        "c.yaml: step_time.base_s: -1: expected at least 0",
    ),
    (
        BASE.replace("base_s: 0.01", "base_s: 0, decode_s: 0"),
        "c.yaml: step_time: base_s: 0, decode_s: 0: steps would take no time; "
        "give one of more than 0",
    ),
    (
        BASE.replace("base_s: 0.01", "decode_s: .inf"),
        "c.yaml: step_time.decode_s: inf: expected a finite number",
    ),
    (
        BASE.replace("base_s: 0.01", "base_s: 1e300"),
        "c.yaml: step_time.base_s: 1e+300: expected at most 1000",
    ),
    # types and bounds
    (
        with_policy("{name: sarathi, budget_tokens: many}"),
        "c.yaml: policy.budget_tokens: many: expected a whole number",
    ),
    (
        with_policy("{name: static, pad_prompts: half}"),
        "c.yaml: policy.pad_prompts: half: expected true or false or attention",
    ),
    (
        with_policy("{name: sarathi, budget_tokens: 0}"),
        "c.yaml: policy.budget_tokens: 0: expected at least 1",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {process: poisson, rate_per_s: 1e-300}"),
        "c.yaml: workload.arrivals.rate_per_s: 1e-300: expected at least 1e-06",
    ),
    (
        with_policy("{name: static, batch_timeout_s: .inf}"),
        "c.yaml: policy.batch_timeout_s: inf: expected a finite number",
    ),
    (
        with_policy("{name: static, batch_timeout_s: -0.5}"),
        "c.yaml: policy.batch_timeout_s: -0.5: expected at least 0",
    ),
    (
        with_policy("{name: orca, reserve: max_model_len}") + "max_model_len: none",
        "c.yaml: policy.reserve: max_model_len needs max_model_len to be set",
    ),
    (
        BASE + "predictor: {name: noisy, sigma: -1}",
        "c.yaml: predictor.sigma: -1: expected at least 0",
    ),
    (
        BASE + "replicas: 0",
        "c.yaml: replicas: 0: expected at least 1; a pool begins at 0 only with autoscale and "
        "min_replicas: 0",
    ),
    (BASE + "replicas: 1.5", "c.yaml: replicas: 1.5: expected a whole number"),
    (BASE + "replicas: true", "c.yaml: replicas: true: expected a whole number"),
    (
        BASE + "seed: 010",
        "c.yaml: seed: 010: expected a whole number; a leading 0 makes it text, as some read it as "
        "octal: write 10",
    ),
    (
        BASE + "seed: '12'",
        "c.yaml: seed: 12: expected a whole number; it is text: leave out the quotes",
    ),
    (BASE + "seed: -1", "c.yaml: seed: -1: expected at least 0"),
    (BASE + "warm_up_s: 1:30", "c.yaml: warm_up_s: 1:30: expected a number"),
    (BASE + "drain_s: .inf", "c.yaml: drain_s: inf: expected a finite number"),
    (
        BASE + "kv: {gpu_memory_utilization: 1.2}",
        "c.yaml: kv.gpu_memory_utilization: 1.2: expected at most 1",
    ),
    (BASE + "fast_forward: no", "c.yaml: fast_forward: no: expected true or false"),
    (
        BASE + "precision: fp7",
        "c.yaml: precision.weights: fp7: expected one of bf16, fp16, fp8, int8, int4; try fp8",
    ),
    (BASE + "slo: {ttft_s: 0}", "c.yaml: slo.ttft_s: 0: expected more than 0"),
    (
        BASE + "slo: {classes: {chat: {ttfs_s: 1}}}",
        "c.yaml: slo.classes.chat.ttfs_s: chat has no such option; try ttft_s",
    ),
    (BASE + "kv: 12", "c.yaml: kv: 12: expected a mapping (key: value)"),
    (
        BASE.replace("max_tokens: 64", "over_long: drop"),
        "c.yaml: workload.over_long: drop: expected one of reject, clip, error",
    ),
    # the workload
    (
        BASE.replace("trace: t.csv", "preset: azure-conv-2023, trace: t.csv, requests: 5"),
        "c.yaml: workload: needs a trace or a preset; both are given",
    ),
    (
        BASE.replace("trace: t.csv, ", ""),
        "c.yaml: workload: needs a trace or a preset; neither is given",
    ),
    (
        BASE.replace("t.csv", "nowhere.csv"),
        "c.yaml: workload.trace: nowhere.csv: no such file, neither beside the config nor here",
    ),
    (
        BASE.replace("trace: t.csv", "trace: t.csv, requests: 5"),
        "c.yaml: workload.requests: belongs to a preset; try arrivals.limit",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {process: gamma}"),
        "c.yaml: workload.arrivals.cv: is required by process gamma",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {rate_per_s: 4}"),
        "c.yaml: workload.arrivals.rate_per_s: belongs to process poisson or gamma or constant or "
        "burst, and none is given: say which, as in arrivals: {process: poisson, rate_per_s: 4.0}",
    ),
    (
        BASE.replace("t.csv", "."),
        "c.yaml: workload.trace: .: is a folder; name the file in it",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {process: poisson, cv: 2}"),
        "c.yaml: workload.arrivals.cv: belongs to process gamma, not to poisson",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {process: poisson, speedup: 2}"),
        "c.yaml: workload.arrivals.speedup: belongs to process recorded, not to poisson",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: closed-loop"),
        "c.yaml: workload.arrivals.concurrency: is required by process closed-loop",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: poison"),
        "c.yaml: workload.arrivals.process: poison: expected one of recorded, poisson, gamma, "
        "constant, burst, closed-loop; try poisson",
    ),
    (
        BASE.replace("max_tokens: 64", "arrivals: {window_s: [5, 2]}"),
        "c.yaml: workload.arrivals.window_s: [5.0, 2.0]: expected [from, to] with 0 <= from < to",
    ),
    (
        BASE.replace(
            "trace: t.csv",
            "preset: azure-conv-2023, requests: 5, arrivals: {rate_per_s: 2, speedup: 3}",
        ),
        "c.yaml: workload.arrivals.speedup: changes the rate that rate_per_s gives; "
        "give one of them",
    ),
    # hardware
    (
        BASE.replace("llama-3.1-8b", "llama-3.1-9b"),
        "c.yaml: model: llama-3.1-9b has no data sheet (or the path of a config.json); "
        "did you mean llama-3.1-8b?",
    ),
    (
        BASE + "device: h100sxm",
        "c.yaml: device: h100sxm has no data sheet; did you mean h100-sxm?",
    ),
    (
        BASE + "tensor_parallel: 3",
        "c.yaml: tensor_parallel: 3 does not divide the 32 query and 8 KV heads of llama-3.1-8b; "
        "choose one of 1, 2, 4, 8, 16, 32",
    ),
    # pools
    (
        BASE + "pools: {prefil: {}, decode: {replicas: 1}}",
        "c.yaml: pools.prefil: pools has no such option; try prefill",
    ),
    (
        BASE + "pools: {}",
        "c.yaml: pools: {}: expected colocated, or prefill, decode and transfer",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}}",
        "c.yaml: pools.transfer: is required beside prefill, decode",
    ),
    (
        BASE
        + "pools: {prefill: {}, decode: {replicas: 1}, transfer: {bandwidth_bytes_per_s: 1e9}}",
        "c.yaml: pools.prefill.replicas: is required: each of two pools says its own",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1, polcy: orca}, "
        "transfer: {bandwidth_bytes_per_s: 1e9}}",
        "c.yaml: pools.decode.polcy: decode has no such option; try policy",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, "
        "transfer: {bandwidth_bytes_per_s: 1e9, sharing: fair}}",
        "c.yaml: pools.transfer.sharing: fair: expected one of none, max-min",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, "
        "transfer: {bandwidth_bytes_per_s: 1e9, start: pus}}",
        "c.yaml: pools.transfer.start: pus: expected one of pull, push; try push",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, "
        "transfer: {bandwidth_bytes_per_s: 1e9, overlap: layer-wise}}",
        "c.yaml: pools.transfer.overlap: layer-wise: expected one of none, layerwise, chunked; "
        "try layerwise",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, "
        "transfer: {bandwidth_bytes_per_s: 1e9, overlap: layerwise}}",
        "c.yaml: pools.transfer.overlap: layerwise: needs start: push, so that the decode side has "
        "its blocks before the prefill begins; try start: push, or overlap: none",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, overlap: chunked, start: push, blocks_decode: true}}",
        "c.yaml: pools.transfer.overlap: chunked: with blocks_decode: true a decode replica would "
        "stand still while prompts are computed; try blocks_decode: false",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, layerwise_above_tokens: 512}}",
        "c.yaml: pools.transfer.layerwise_above_tokens: 512: counts with overlap: layerwise only; "
        "set that, or leave it out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, batch_bytes: 1000000}}",
        "c.yaml: pools.transfer.batch_bytes: 1000000: needs batch_wait_s, for how long a smaller "
        "batch waits; 0: those of one instant go together",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, batch_wait_s: 0, start: push, overlap: layerwise}}",
        "c.yaml: pools.transfer.batch_wait_s: 0: what is sent while its prefill goes on joins no "
        "batch; try overlap: none, or leave it out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, message_bytes: 65536}}",
        "c.yaml: pools.transfer.message_bytes: 65536: says with per_message_s how fast messages "
        "are sent; give both, or neither",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, start: push, "
        "staging: {bytes: 1e9, bandwidth_bytes_per_s: 1e9}}}",
        "c.yaml: pools.transfer.staging: with start: push the target's blocks are there before the "
        "prefill begins, and nothing waits; try start: pull, or leave it out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, start: push, hold_timeout_s: 480}}",
        "c.yaml: pools.transfer.hold_timeout_s: 480: with start: push KV is sent when its prefill "
        "has ended, and none is held; try start: pull, or leave it out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, hold_timeout_s: 480, "
        "staging: {bytes: 1e9, bandwidth_bytes_per_s: 1e9}}}",
        "c.yaml: pools.transfer.hold_timeout_s: 480: not modelled with staging, whose memory holds "
        "KV for as long as it takes; leave one of them out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1}, transfer: "
        "{bandwidth_bytes_per_s: 1e9, on_hold_timeout: fail}}",
        "c.yaml: pools.transfer.on_hold_timeout: fail: says what becomes of a request after "
        "hold_timeout_s; set that, or leave it out",
    ),
    (
        BASE + "nic_bytes_per_s: 1e9",
        "c.yaml: nic_bytes_per_s: 1e+09: counts where transfers share links only; leave it out",
    ),
    (
        BASE + "pools: {prefill: {replicas: 1}, decode: {replicas: 1, nic_bytes_per_s: 1e9}, "
        "transfer: {bandwidth_bytes_per_s: 1e9}}",
        "c.yaml: pools.decode.nic_bytes_per_s: 1e+09: counts where transfers share links only; "
        "set sharing: max-min in transfer",
    ),
    (
        BASE + "pools: {mixed: {replicas: 1}, prefill: {replicas: 1}, decode: {replicas: 1}, "
        "transfer: {bandwidth_bytes_per_s: 1e9}}",
        "c.yaml: pools.mixed: pools has no such option; try mixed_pool",
    ),
    (
        BASE + "pools: {third: {replicas: 1}}",
        "c.yaml: pools.third: pools has no such option; choose one of colocated, decode, "
        "local_prefill, mixed_pool, prefill, role_switching, transfer",
    ),
    (BASE + "decode_router: random", "c.yaml: decode_router: there is no decode pool; try router"),
    (
        BASE + "order: sjf",
        "c.yaml: predictor: is required by order sjf; choose one of bucket, noisy, oracle",
    ),
    (
        BASE + POOLS + "replicas: 2",
        "c.yaml: replicas: 2: there are two pools, and each says its own; give "
        "pools.prefill.replicas and pools.decode.replicas",
    ),
    (
        BASE + POOLS + "compare: [{label: a, replicas: 3}]",
        "c.yaml: variant a: replicas: 3: there are two pools, and each says its own; give "
        "pools.prefill.replicas and pools.decode.replicas",
    ),
    (
        BASE + POOLS + "pools.decode.precision: {kv: fp8}",
        "c.yaml: pools.decode.precision.kv: fp8: the prefill pool keeps its KV in bf16, and "
        "transfers do not convert; give both the same",
    ),
    # variants
    (
        BASE + "compare: [{label: 12}]",
        "c.yaml: compare[0].label: 12: expected text; put it in quotes",
    ),
    (BASE + "label: 12", "c.yaml: label: 12: expected text; put it in quotes"),
    (
        BASE + f"compare: [{{label: {'x' * 300}}}]",
        f"c.yaml: compare[0].label: {'x' * 57}...: expected at most 80 characters, not 300",
    ),
    (BASE + "compare: {a: 1}", "c.yaml: compare: {'a': 1}: expected a list of variants"),
    (
        BASE + "compare: [{policy: orca}]",
        "c.yaml: compare[0].label: is required: the name of the variant in tables",
    ),
    (
        BASE + "compare: [{label: a}, {label: A}]",
        "c.yaml: compare[0] and compare[1]: the labels a and A give the same folder, a; "
        "labels have to differ in letters or digits, not only in case or signs",
    ),
    (
        BASE + "compare: [{label: a, replicas: 2}, {label: b}, {label: a, replicas: 3}]",
        "c.yaml: compare[0] and compare[2]: both have the label a; labels have to differ",
    ),
    (
        BASE + "grid: {replicas: [1, 2], seed: [4, 4]}",
        "c.yaml: grid.replicas[0], grid.seed[0] and grid.replicas[0], grid.seed[1]: both have the "
        "label replicas=1, seed=4; labels have to differ",
    ),
    (
        BASE + "label: x\ncompare: [{label: a}, {label: b}]",
        "c.yaml: label: x: the variants of compare and grid have labels of their own; leave it out",
    ),
    (
        BASE + "compare: [{label: big, policy: {name: sarathi, budget_tokns: 1}}]",
        "c.yaml: variant big: policy.budget_tokns: sarathi has no such option; try budget_tokens",
    ),
    (
        BASE + "compare: [{label: a, name: b}]",
        "c.yaml: compare[0].name: belongs to the whole file, not to a variant",
    ),
    (BASE + "grid: {seed: 4}", "c.yaml: grid.seed: 4: expected a list of values"),
    (
        BASE + "max_num_seqs: 8\npolicy.max_num_seqs: 9",
        "c.yaml: max_num_seqs: policy.max_num_seqs is given too; give one of them",
    ),
    # the file
    ('seed: "\0"', "c.yaml: line 1: character U+0000 is not allowed in YAML"),
    ("- a\n- b", "c.yaml: holds ['a', 'b']; expected keys with values"),
    ("", "c.yaml: holds null; expected keys with values"),
    (
        BASE + "schema_version: 99",
        "c.yaml: schema_version: 99 is newer than this phasewise, which reads up to 1; "
        "install a newer one",
    ),
    (BASE + "seed: 1\nseed: 2", "c.yaml: line 7: seed is given twice (first in line 6)"),
    (
        BASE.replace("policy: sarathi\n", ""),
        "c.yaml: policy: is required: one of distserve, orca, sarathi, sglang, static, vllm-v0, "
        "vllm-v1, or give an engine (phasewise list engines)",
    ),
    (
        BASE.replace("model: llama-3.1-8b\n", ""),
        "c.yaml: model: is required: the name of a model (phasewise list models) or the path of "
        "its config.json",
    ),
    (
        with_policy("{budget_tokens: 5}"),
        "c.yaml: policy.name: is required: which policy, one of distserve, orca, sarathi, sglang, "
        "static, vllm-v0, vllm-v1",
    ),
    # users' own classes
    (
        with_policy("no_such_module:Mine"),
        "c.yaml: policy: no_such_module:Mine: module no_such_module cannot be imported: "
        "No module named 'no_such_module' (looked in FOLDER and HERE first)",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISUSES, ids=[line for _, line in MISUSES])
def test_a_misuse_is_one_line_that_helps(folder: Path, text: str, line: str) -> None:
    expected = line.replace("FOLDER", str(folder)).replace("HERE", str(Path.cwd()))
    assert refusal(folder, text) == expected


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            "policy.budget_token=4",
            "--set: policy.budget_token: sarathi has no such option; try budget_tokens",
        ),
        ("seed", "--set seed: expected key=value, such as policy.budget_tokens=256"),
        ("seed=", "--set seed=: lacks a value; write seed=null for the default"),
        ("router.x= ", "--set router.x= : lacks a value; write router.x=null for the default"),
        ("replicas=none", "--set: replicas: none: expected a whole number"),
        ("seed=[1", "--set seed=[1: line 1, column 3: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_a_setting_that_is_wrong_is_named_as_such(folder: Path, setting: str, line: str) -> None:
    assert refusal(folder, BASE, (setting,)) == line


def test_a_label_for_all_variants_is_refused(folder: Path) -> None:
    text = BASE + "compare: [{label: a}, {label: b}]"

    assert refusal(folder, text, ("label=x",)) == (
        "--set: label: x: the variants of compare and grid have labels of their own; leave it out"
    )
    assert refusal(folder, text.replace("b}", "a}"), ("seed=1",)).endswith("labels have to differ")


def test_a_config_that_is_neither_a_file_nor_shipped_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"^quikstart: no such file, and no shipped config"):
        load("quikstart")


def test_a_users_class_that_does_not_exist_names_the_nearest(folder: Path) -> None:
    text = "from sim.policy import Policy\n\n\nclass Greedy(Policy): pass\nclass Greed: pass\n"
    (folder / "mine_for_errors.py").write_text(text)

    line = refusal(folder, with_policy("mine_for_errors:Gredy"))

    assert line == "c.yaml: policy: mine_for_errors has no 'Gredy'; try Greedy"


def test_a_users_class_has_to_be_a_policy(folder: Path) -> None:
    (folder / "mine_no_policy.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Greedy: pass\n"
    )

    line = refusal(folder, with_policy("mine_no_policy:Greedy"))

    assert line == "c.yaml: policy: mine_no_policy:Greedy is no sim.policy.Policy; subclass that"


def test_a_users_option_may_state_its_own_minimum(folder: Path) -> None:
    (folder / "mine_minimum.py").write_text(
        "from dataclasses import dataclass, field\nfrom sim.policy import Policy\n"
        "@dataclass\nclass Greedy(Policy):\n"
        "    most: int = field(default=0, metadata={'minimum': -2})\n"
    )
    fine = folder / "fine.yaml"
    fine.write_text(with_policy("{name: 'mine_minimum:Greedy', most: -2}"))

    assert load(fine).variants
    assert refusal(folder, with_policy("{name: 'mine_minimum:Greedy', most: -3}")) == (
        "c.yaml: policy.most: -3: expected at least -2"
    )


def test_options_of_a_users_policy_are_checked_like_ours(folder: Path) -> None:
    (folder / "mine_options.py").write_text(
        "from dataclasses import dataclass\nfrom sim.policy import Policy\n"
        "@dataclass\nclass Greedy(Policy):\n    most: int = 4\n"
    )

    line = refusal(folder, with_policy("{name: 'mine_options:Greedy', mots: 3}"))

    assert line == "c.yaml: policy.mots: mine_options:Greedy has no such option; try most"
