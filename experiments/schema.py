"""The keys of a config, with units in their names, bounds, defaults and what they mean.

`Experiment` is the resolved form, one variant with every pool written out; a bundle keeps it, and
it can be run again. People write the same keys, those of a pool also at top level, an `engine`, and
the variants to compare: `json_schema.py` describes that for editors, with the text below each key.

Annotations are objects here, not texts, which pydantic would have to compile at each start.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

SCHEMA_VERSION = 1
"""Version of the config schema; an older config is read, a newer one refused."""


def _whole(value: object) -> object:
    """1e6 is a whole number too: YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


MOST = 10**9
"""Largest count, and longest time in seconds (31 years): sums of such still fit 64-bit integers."""
MOST_REPLICAS = 10_000
LONGEST_LABEL = 80
"""Characters of a label: more do not fit a table, a legend or the name of a folder."""

# The bounds stand before the validator, so that JSON Schema gets them as minimum and maximum.
Version = Annotated[int, Field(ge=1, le=SCHEMA_VERSION), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_whole)]
Natural = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_whole)]
Bytes = Annotated[int, Field(ge=0, le=10**15), BeforeValidator(_whole)]
Replicas = Annotated[int, Field(ge=1, le=MOST_REPLICAS), BeforeValidator(_whole)]
Positive = Annotated[float, Field(gt=0, le=MOST)]
NotNegative = Annotated[float, Field(ge=0, le=MOST)]
Ratio = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A rate or a factor: wide enough for any service, and no draw or division overflows."""
Slowness = Annotated[float, Field(ge=1, le=1e6)]
"""How many times as long iterations take: 2 is half the speed."""


def _limit(value: object) -> object:
    return None if isinstance(value, str) and value.lower() == "none" else _whole(value)


Limit = Annotated[
    Annotated[int, Field(ge=1, le=MOST)] | None,
    BeforeValidator(_limit),
    Field(
        json_schema_extra={"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["none", None]}]}
    ),
]
"""A count, or ``none`` for no limit."""
Named = dict[str, Any]
"""A name with options of its own, such as ``{name: sarathi, budget_tokens: 512}``."""


Process = Literal["recorded", "poisson", "gamma", "constant", "burst", "closed-loop"]


class Strict(BaseModel):
    """Refuses unknown keys, and values of another type than the one stated."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most models are only parts of `Experiment`, which is all that is read
    )


class Arrivals(Strict):
    """When requests arrive: as recorded, or drawn anew on the same requests."""

    process: Process | None = None
    """How arrival times are made. Default: as recorded, or as the preset was measured."""
    rate_per_s: Ratio | None = None
    """Mean requests per second of a re-timed workload. Default: the recorded mean rate."""
    cv: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Coefficient of variation of the gaps, for ``gamma`` (1 is Poisson, above 1 bursty)."""
    burst_requests: Count | None = None
    """Requests that arrive together, for ``burst``."""
    speedup: Ratio = 1.0
    """Recorded times are divided by this: 2 doubles the rate."""
    window_s: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] | None = None
    """Part of the recording to use, [from, to) in seconds from its start, before speedup."""
    limit: Count | None = None
    """Use at most this many requests, the first ones."""
    spread_ticks: bool = False
    """Spread requests recorded on coarse ticks evenly (drawn uniformly) over their tick."""
    concurrency: Count | None = None
    """Requests in the system at any time, for ``closed-loop``; with `sessions`, sessions."""


class Delay(Strict):
    """What passes between the end of a turn and the next: thinking, typing, a tool at work."""

    distribution: Literal["recorded", "constant", "exponential", "gamma", "lognormal"] = "recorded"
    """``recorded``: the trace's column delay, empty fields being 0. Others are drawn, in trace
    order."""
    mean_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Mean of a drawn delay, seconds."""
    cv: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Coefficient of variation, for ``gamma`` and ``lognormal``."""


class Sessions(Strict):
    """Turns of a session follow each other in closed loop: the next one arrives when the one before
    has ended and its delay is over. `arrivals` says when sessions begin, whatever its process; its
    rates, bursts, window, limit and concurrency count sessions."""

    delay: Delay = Delay()
    """Between the end of a turn and the next: ``recorded``, or such as {distribution: lognormal,
    mean_s: 20, cv: 1}."""
    on_failed_turn: Literal["skip", "continue"] = "skip"
    """After a turn that was rejected or has failed: ``skip`` the rest of its session, which is
    counted, or ``continue`` with it."""
    prompts: Literal["whole", "incremental"] | None = None
    """What a row's prompt tokens are: the ``whole`` prompt, or ``incremental``, only what is new
    since the turn before. Default: told from the rows, and refused where that leaves it open."""


class Patience(Strict):
    """How long a client waits, from the arrival of its request on."""

    distribution: Literal["constant", "exponential", "gamma", "lognormal"]
    """Drawn in trace order."""
    mean_s: Annotated[float, Field(gt=0, le=1e6)]
    """Mean, seconds."""
    cv: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Coefficient of variation, for ``gamma`` and ``lognormal``."""


class Cancel(Strict):
    """Clients that give up: a request not finished by then is cancelled, and frees its memory."""

    share: Annotated[float, Field(ge=0, le=1)]
    """Probability that a request's client gives up."""
    after: Patience
    """When, such as {distribution: exponential, mean_s: 5}."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Source(Strict):
    """Which requests arrive, and when: a trace file or a synthetic preset."""

    trace: str | None = None
    """Path of a trace file, relative to the config's folder or to the working folder."""
    format: str | None = None
    """Trace format; default: recognised from the content."""
    columns: dict[str, str] | None = None
    """For plain CSV or JSON lines: our name of a column to the file's name of it."""
    preset: Annotated[Named | None, BeforeValidator(_named)] = None
    """A synthetic preset instead of a trace: a name, or name and options such as
    {name: prefix-repetition, prefix_tokens: 1024} (``phasewise list presets``)."""
    requests: Count | None = None
    """Requests to make from a preset; of sessions, turns in all."""
    arrivals: Arrivals = Arrivals()
    sessions: Sessions | None = None
    """Let the turns of a session follow each other; ``{}`` for the defaults. Without this key every
    request of a trace arrives by itself, whatever session it belongs to."""
    prompt_order: Literal["stable-first", "variable-first"] | None = None
    """Where prompts consist of a part that others share and a part of their own (presets that share
    parts, sessions without block ids): which comes first. ``variable-first`` is the mistake of a
    time or a user's text in front of the system prompt. Default: ``stable-first``."""


class Part(Source):
    """One of several workloads that are mixed."""

    request_class: Annotated[str, Field(pattern=r"\S")] | None = None
    """Class of all its requests. Default: the preset's, or the trace's column."""
    share: Ratio | None = None
    """Its share of the mix's `requests` and `arrivals`, beside those of the other parts, instead of
    requests and arrivals of its own."""
    max_tokens: Count | None = None
    """As `max_tokens` of the workload, for this part."""


class Workload(Source):
    """Which requests arrive, and when: a trace file, a synthetic preset, or a mix of them."""

    mix: Annotated[list[Part], Field(min_length=1)] | None = None
    """Several workloads at once, each with its own arrivals, sessions and class."""
    cancel: Cancel | None = None
    """Let clients give up whom the trace (column ``cancel_after_s`` or ``_ms``) says nothing of,
    such as {share: 0.1, after: {distribution: exponential, mean_s: 5}}."""
    max_tokens: Count | None = None
    """Most output tokens a client asks for where the trace does not say; what policies see.
    Default: the true output length, with a note that reservations were clairvoyant."""
    over_long: Literal["reject", "clip", "error"] = "reject"
    """What to do with a request of prompt + max_tokens over max_model_len."""


class Precision(Strict):
    """Number formats, which set bytes moved and FLOPs available."""

    weights: Literal["bf16", "fp16", "fp8", "int8", "int4"] = "bf16"
    """Format of the weights (int4: as AWQ and GPTQ, computed in bf16)."""
    kv: Literal["bf16", "fp16", "fp8"] = "bf16"
    """Format of the KV cache."""


class KV(Strict):
    """Memory for keys and values of one replica."""

    num_blocks: Count | None = None
    """Blocks of the pool. Default: computed from model, device, precision and the keys below."""
    block_tokens: Count = 16
    """Tokens in one block (16: the default of vLLM and sarathi-serve on GPUs)."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of device memory that the engine may use in all (0.9: vLLM's default)."""
    activation_reserve_bytes: Bytes | None = None
    """Memory kept for activations, bytes per GPU. Default: stated by the model's sheet."""
    host_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Of the link to host memory, one direction, all GPUs of a replica together, for policies that
    move KV there (``vllm-v0`` with ``preemption: swap``, ``vllm-v1`` with ``host_cache_blocks``).
    Default: the device's host link, from its
    data sheet, times the GPUs."""
    disk_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Of the disk behind host memory, all GPUs of a replica together, for ``vllm-v1`` with
    ``disk_cache_blocks``, which needs it: there is no default. Reading, and writing too unless the
    next key is given."""
    disk_write_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Of the same disk, where it writes at another rate."""
    host_overlap: bool = False
    """Copies over the host link run beside a step, which takes the longer of the two; else they
    come before it."""


def _even(value: object) -> object:
    if value == "even":
        return {"zipf": 0.0}
    if not isinstance(value, dict | ExpertImbalance):
        raise ValueError(f"{value}: expected even, or a mapping such as {{zipf: 0.5}}")
    return value


class StageLink(Strict):
    """How activations move from one pipeline stage to the next."""

    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Of one GPU to its counterpart in the next stage, one direction. Default: the device's link to
    the other GPUs of its node, from its data sheet."""
    latency_s: NotNegative = 0.0
    """Paid once for each batch and move."""
    bytes_per_token: Count | None = None
    """Activations of one token. Default: hidden state and residual in 16 bits each, as vLLM sends
    them; each GPU sends all of it to its counterpart."""


class ExpertImbalance(Strict):
    """How uneven a router's choice of experts is; ``even`` stands for ``{zipf: 0}``."""

    zipf: Annotated[float, Field(ge=0, le=2)] = 0.0
    """The i-th most popular expert has weight ``i ** -zipf``: 0 even, 1 very uneven."""


class WarmUp(Strict):
    """The first iterations of a replica that has started during the run; by default as any."""

    iterations: Natural = 0
    """How many are slower by `factor`."""
    factor: Slowness = 1.0
    """How much longer they take, as the decimal number that is written."""
    first_pass_s: NotNegative = 0.0
    """What the very first takes in addition, such as for graphs that are captured lazily."""


class Restart(Strict):
    """What passes before a replica serves that is restored or added during the run
    (`sim.startup`). By default nothing: measure it with your disks, network and engine."""

    load_s: NotNegative | None = None
    """Time to load the weights, and for what else an engine does before it serves."""
    weights_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Instead: with which each GPU reads its weights; the GPU with most of them counts."""
    warm_up: WarmUp = WarmUp()
    """Its first iterations, such as {iterations: 20, factor: 1.5, first_pass_s: 3}."""


class Autoscale(Strict):
    """How a pool grows and shrinks by itself (`sim.autoscale`)."""

    autoscaler: Named
    """How many replicas it wants: a name, or name and options (``phasewise list autoscalers``)."""
    min_replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS), BeforeValidator(_whole)] = 1
    """Fewest, up and starting ones together; 0: none while idle, and a request starts one."""
    max_replicas: Replicas = 10
    """Most."""
    interval_s: Annotated[float, Field(ge=0.001, le=MOST)] = 15.0
    """Time between looks (15: the HPA's)."""
    cool_down_up_s: NotNegative = 0.0
    """Replicas are added once more were wanted for so long (0: the HPA's default)."""
    cool_down_down_s: NotNegative = 300.0
    """Replicas drain once fewer were wanted for so long (300: the HPA's default)."""
    provisioning_s: NotNegative
    """From the order until a machine is there; then `restart` says what it loads and how long it
    warms up. It depends on your cloud or cluster, so that there is no default; 0: at once."""
    take_back: bool = False
    """Replicas that drain are taken back before others are started (Kubernetes does not)."""


def _listed(value: object) -> object:
    value = _whole(value)
    if isinstance(value, bool) or not isinstance(value, int | list | None):
        said = str(value).lower() if isinstance(value, bool) else value
        raise ValueError(f"{said}: expected the number of a node, or a list of them")
    return [value] if isinstance(value, int) else value


class Pool(Strict):
    """Replicas with one role. Each key is also accepted at top level."""

    replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS), BeforeValidator(_whole)] = 1
    """Model instances in the pool; 0 only where `autoscale` starts the first one."""
    device: str = "h100-sxm"
    """GPU type (``phasewise list devices``)."""
    tensor_parallel: Count = 1
    """GPUs of one replica, or of one stage of it."""
    pipeline_parallel: Count = 1
    """Stages of one replica, each on GPUs of its own with part of the layers."""
    stage_layers: Annotated[list[Count], Field(min_length=1)] | None = None
    """Layers of each stage, first stage first. Default: an even split; layers left over go to the
    stages before the last."""
    stage_link: StageLink = StageLink()
    """How activations move from stage to stage."""
    chunked_pipeline: bool = False
    """Several chunks of one prompt may be in the stages at once, one behind the other, so that a
    long prompt alone is done sooner, by up to the number of stages (`sim.chunked_pipeline`)."""
    expert_parallel: Count = 1
    """Of those GPUs, how many hold experts of their own; the rest share each expert."""
    data_parallel_attention: Count = 1
    """Groups of those GPUs, each of which attends its own requests. Tokens are sent to the GPUs of
    their experts, so that `expert_parallel` has to be all GPUs."""
    expert_imbalance: Annotated[ExpertImbalance, BeforeValidator(_even)] = ExpertImbalance()
    """How uneven a router's choice of experts is: ``even`` or ``{zipf: 0.5}``. Less even loads the
    busiest GPU more, but fewer experts are read, so that small batches may be quicker."""
    precision: Precision = Precision()
    policy: Named
    """What a replica runs next: a name, or name and options (``phasewise list policies``)."""
    order: Named = {"name": "fcfs"}
    """Order of the waiting queue: a name, or name and options (``phasewise list orders``)."""
    kv: KV = KV()
    nodes: Annotated[
        list[Natural] | None,
        Field(min_length=1),
        BeforeValidator(_listed, json_schema_input_type=Natural | list[Natural] | None),
    ] = None
    """Numbers of the nodes of a `topology` on which the replicas may lie, in order of preference,
    such as 0 or [2, 3]. Default: all, by number."""
    nic_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Of a replica's network, each direction, for transfers with ``sharing: max-min``. Default: the
    transfer's `bandwidth_bytes_per_s`."""
    restart: Restart = Restart()
    """What passes before a replica serves that is restored or added, such as {load_s: 40}."""
    autoscale: Autoscale | None = None
    """Let the pool grow and shrink, such as {autoscaler: {name: queue-length, target: 16},
    min_replicas: 0, provisioning_s: 60}; `replicas` is then the number at the start. Default: it
    keeps its replicas."""
    max_model_len: Limit = None
    """Longest prompt + max_tokens that is accepted; ``none``: no limit. Default: the context length
    of the model, as engines take it."""
    step_time: Named = {"model": "roofline"}
    """Length of an iteration: ``{model: roofline}``, ``{model: profile, data: DIR}`` from measured
    tables, or ``{model: linear, base_s: ...}``. An engine adds the host's time of its version."""

    @model_serializer(mode="wrap")
    def _say_no_limit(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a limit, a resolved config says so: where it says nothing, there is a default."""
        values: dict[str, Any] = plain(self)
        return values if self.max_model_len is not None else {**values, "max_model_len": "none"}


class Wire(Strict):
    """One direction of a kind of link in a topology."""

    bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Bandwidth. Default: that of the sheet; of NVLink and PCIe, that of the device's sheet."""
    latency_s: Annotated[float, Field(ge=0, le=1)] | None = None
    """Before the first byte. Default: that of the sheet, or 0."""
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the bandwidth that transfers get. Default: that of the sheet, or 1."""


def _no_wire(value: object) -> object:
    if value != "none" and not isinstance(value, dict | Wire):
        raise ValueError(f"{value}: expected none, or a mapping such as {{efficiency: 0.8}}")
    return value


class NodeKind(Strict):
    """Nodes of one kind: a sheet, and what differs from it."""

    sheet: str | None = None
    """Nodes as they are sold or were measured (``phasewise list topologies``)."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024), BeforeValidator(_whole)] | None = None
    """GPUs in a node. Default: that of the sheet."""
    nics_per_node: Annotated[int, Field(ge=1, le=1024), BeforeValidator(_whole)] | None = None
    """NICs for transfers, each of which serves equally many GPUs. Default: that of the sheet."""
    nic: Wire = Wire()
    """One NIC, such as {bytes_per_s: 5.0e+10}."""


class NodeGroup(NodeKind):
    """More nodes, of another kind."""

    nodes: Count
    """How many."""


class Topology(NodeKind):
    """Nodes with GPUs, and the links that KV transfers share (`sim.topology`)."""

    nodes: Count | None = None
    """How many. Default: as many as the replicas need."""
    nvlink: Annotated[Wire | Literal["none"], BeforeValidator(_no_wire)] = Wire()
    """The port of a GPU to a switch in its node, where its device has NVLink; ``none``: neighbours
    are reached over PCIe."""
    pcie: Annotated[Wire | Literal["none"], BeforeValidator(_no_wire)] = Wire()
    """The port of a GPU to its NIC, and to its neighbours without NVLink; ``none``: it is no
    bottleneck."""
    nodes_per_leaf: Count | None = None
    """Nodes on one leaf switch. Default: all nodes on a switch without bottleneck."""
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Bandwidth of the NICs of a leaf over that of its uplink."""
    leaf_latency_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Added where a transfer leaves its leaf."""
    more_nodes: list[NodeGroup] = []
    """Nodes of other kinds, numbered after the first ones, whose number has to be given then."""


class Staging(Strict):
    """Memory at each prefill replica that KV is copied to when its prefill has ended."""

    bytes: Annotated[int, Field(ge=1, le=10**15), BeforeValidator(_whole)]
    """Its size. KV for which there is no room stays on the GPU until there is, or it is pulled."""
    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)]
    """At which KV is copied there, one request's after the other, beside the steps."""


class Transfer(Strict):
    """How KV moves from a prefill replica to a decode replica."""

    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Bytes per second of one transfer; with ``sharing: max-min`` that of each direction of a
    replica's NIC that has no `nic_bytes_per_s`. Required, but with a `topology`, whose links say
    it."""
    latency_s: NotNegative = 0.0
    """Paid once per transfer, before that of the links of a `topology`."""
    start: Literal["pull", "push"] = "pull"
    """``pull``: the decode side reserves once the prefill is over, and so holds back the prefill
    side when it is full. ``push``: the decode replica is chosen on arrival, and a prefill starts
    only when its blocks are reserved there."""
    overlap: Literal["none", "layerwise", "chunked"] = "none"
    """``none``: the KV moves after the prefill has ended. With ``start: push`` also ``layerwise``:
    all layers but the last one flow from the start of the prefill on (Splitwise, Mooncake), and
    ``chunked``: what a chunk of a prefill has computed is sent when its step ends (SGLang)."""
    layerwise_above_tokens: Natural = 0
    """Prompts up to this length are sent as a whole when their prefill has ended, longer ones layer
    by layer (Splitwise)."""
    message_bytes: Count | None = None
    """KV goes in messages of this size, such as that of one layer of one block; give
    `per_message_s` with it. Default: messages cost nothing."""
    per_message_s: NotNegative = 0.0
    """Time between two messages of a transfer, at least, so that it is no faster than
    `message_bytes` in that time."""
    batch_wait_s: NotNegative | None = None
    """Transfers of one source and target wait so long for company, go as one and pay one latency;
    0: those of one instant. Default: each goes by itself."""
    batch_bytes: Count | None = None
    """A batch of so many bytes is sent without waiting any more."""
    staging: Staging | None = None
    """Memory at each prefill replica in which KV waits for its pull, off the GPU, such as
    {bytes: 64e9, bandwidth_bytes_per_s: 25e9}."""
    sharing: Literal["none", "max-min"] = "none"
    """``none``: each transfer has the bandwidth to itself, and the summary says so. ``max-min``:
    those under way share what their source sends and their target receives, max-min fairly; with a
    `topology` the links of their paths, and it is the only choice and the default."""
    blocks_decode: bool = False
    """A decode replica starts no step while KV is on its way to it, one request's at a time
    (DistServe)."""
    max_waiting_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """With `blocks_decode`: requests are fetched one after the other while those fetched, and not
    running yet, have less than this share of the pool (DistServe: 0.05). Default: as many as have
    room, each of which joins at once."""
    recompute_last_token: bool = False
    """The decode side computes the last prompt token again and emits token 1 (vLLM with NIXL)."""
    hold_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """A prefill replica keeps KV that nobody fetches for so long only (vLLM's
    VLLM_NIXL_ABORT_REQUEST_TIMEOUT: 480). Default: for as long as it takes."""
    on_hold_timeout: Literal["reroute", "fail"] = "reroute"
    """What becomes of a request whose KV was not fetched in time: it is prefilled again, or fails.
    """
    decode_first: bool = False
    """The decode replica is chosen on arrival, before the prefill replica (llm-d, Dynamo), not when
    the prefill ends. With `local_prefill` it always is."""


class LocalPrefill(Strict):
    """Which requests stay on the decode replica chosen for them, which then prefills them itself
    (`sim.local_prefill`)."""

    max_uncached_tokens: Natural = 0
    """Those with at most so many prompt tokens that are not cached there."""
    max_queue: Count | None = None
    """All, while at least so many requests wait in the queues of the prefill pool."""


class PrefixFetch(Strict):
    """A global prefix cache: a replica fetches what another one of its pool has of a prompt's
    prefix, and the request waits for that (`sim.prefix_fetch`)."""

    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Bytes per second of one fetch; where transfers share links, only what the router mooncake
    reckons with. Default: the transfer's, which is needed where there is none."""
    latency_s: NotNegative | None = None
    """Paid once per fetch. Default: the transfer's, or 0."""
    balancing_threshold: Ratio = 1.0
    """What another replica has is fetched if it is more than so many times what the replica has
    itself; 1: whenever it is more."""


class TokenBucket(Strict):
    """A bucket that fills at a rate, up to a size; it is full at the start."""

    tokens_per_s: Count
    """Tokens that it gains a second."""
    burst_tokens: Count
    """Most tokens that it holds: a request that costs more never passes."""


class RateLimit(TokenBucket):
    """A token bucket for each tenant; requests without a tenant share one."""

    tenants: dict[str, TokenBucket] = {}
    """Tenant (a trace column) to a bucket of another size."""
    charge: Literal["prompt_and_max", "prompt", "request"] = "prompt_and_max"
    """What a request costs: prompt and max_tokens, the prompt, or 1."""


class DecodeLoad(Strict):
    """Refuse on arrival what the decode pool has no capacity for (`sim.decode_load`)."""

    max_tbt_s: Positive | None = None
    """Longest step of the mean decode batch."""
    max_kv_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Largest share of the decode pool's KV memory."""
    predicted: bool = False
    """Judge the load when the request's prefill will have ended, not as it is on arrival."""
    decode_s: Positive | None = None
    """How long a request decodes, on average, for ``predicted: true``, which needs it."""


class EarlyRejection(Strict):
    """Refuse on arrival what would wait too long for its first token, as far as can be foreseen."""

    max_ttft_s: Positive | None = None
    """Longest predicted TTFT. Default: none but those of `classes`."""
    classes: dict[str, Positive] = {}
    """Request class (a trace column) to a limit of its own, seconds."""
    prefill_tokens_per_s: Count | None = None
    """Rate at which a replica prefills. Default: 2048 tokens in the step time of such a prompt."""
    counts_cached: bool = False
    """Tokens that the replica has cached need no time; with `router_snapshot_s` 0 only."""
    decode_load: DecodeLoad | None = None
    """With two pools, a limit of the decode pool's load, such as {max_tbt_s: 0.05}."""


class Admission(Strict):
    """Who is turned away at the entry although a replica could run it (`sim.admission`)."""

    max_waiting: Count | None = None
    """Refuse while so many requests wait in all queues."""
    max_waiting_per_replica: Count | None = None
    """Route to replicas with fewer in their queue only; refuse if there is none."""
    rate_limit: RateLimit | None = None
    """Token buckets of tenants, such as {tokens_per_s: 1000, burst_tokens: 20000}."""
    early_rejection: EarlyRejection | None = None
    """Refuse on a predicted TTFT, such as {max_ttft_s: 2}."""


class Migration(Strict):
    """Running requests move to other replicas of the pool that decodes (`sim.migration`)."""

    migrator: Annotated[Named, BeforeValidator(_named)]
    """Which move where: a name, or name and options (``phasewise list migrators``)."""
    interval_s: Annotated[float, Field(ge=1e-4, le=MOST)] = 0.05
    """Between two decisions (0.05: Llumnix's default)."""
    mode: Literal["live", "stop", "recompute"] = "live"
    """``live``: KV is copied in stages while the request goes on, which stops for the last one;
    ``stop``: it stops for the whole copy; ``recompute``: the target prefills it again."""
    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)] | None = None
    """Bytes per second of one copy between colocated replicas; with ``sharing: max-min`` that of
    each direction of a replica's NIC that has no `nic_bytes_per_s`. With two pools, or with a
    topology, leave it out: KV moves as that says."""
    latency_s: NotNegative = 0.0
    """Paid by each stage."""
    sharing: Literal["none", "max-min"] = "none"
    """Whether copies share NICs."""
    last_stage_blocks: Count = 16
    """With at most so many blocks left to copy a request stops (16: Llumnix's default)."""
    max_stages: Count = 3
    """A request whose last stage has not come by then stays (3: Llumnix's default)."""


class RoleSwitching(Strict):
    """Replicas of two pools change their roles by themselves (`sim.roles`)."""

    switcher: Annotated[Named, BeforeValidator(_named)]
    """Which pool needs one of the other: a name, or name and options (``phasewise list
    role-switchers``)."""
    interval_s: Annotated[float, Field(ge=0.001, le=MOST)] = 1.0
    """Time between looks. (No published system gives one; nor a cool-down.)"""
    cool_down_s: NotNegative = 0.0
    """From one change of role to the next, at least."""
    min_prefill: Replicas = 1
    """Prefill replicas that stay."""
    min_decode: Replicas = 1
    """Decode replicas that stay."""


class MixedPool(Strict):
    """Replicas of two pools run whole requests under load (`sim.mixed_pool`)."""

    max_prompt_tokens: Count
    """Requests wait for no prefill replica in whose queue somebody waits, and where the tokens left
    to prefill and their own are more: a decode replica prefills and decodes them. (Splitwise gives
    no number.)"""
    max_kv_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A decode replica takes no request whose prompt makes it need more of its KV blocks: a prefill
    replica prefills and decodes it."""


class Change(Strict):
    """What happens to a replica, its NIC or a node at an instant (`sim.changes`,
    `sim.slow_down`)."""

    at_s: NotNegative
    """When, seconds from the start."""
    what: Literal["fail", "restore", "drain", "add", "role", "slow", "normal", "degrade", "mend"]
    """``fail``: its step in flight and all KV are lost; ``restore``: one that failed is up again,
    empty; ``drain``: it takes no more requests, and is gone when it has none; ``add``: one more;
    ``role``: it drains, and is then the next replica of the other of two pools, on its GPUs.
    ``slow``: iterations that start from then on take `factor` times as long; ``degrade``: its NIC
    carries `factor` times its bandwidth; ``normal`` and ``mend`` end these."""
    factor: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Of ``slow``, such as 1.5, and ``degrade``, such as 0.1; as the decimal number written."""
    until_s: NotNegative | None = None
    """When ``slow`` or ``degrade`` ends. Default: with ``normal`` or ``mend``, or never."""
    node: Annotated[int, Field(ge=0, le=MOST_REPLICAS), BeforeValidator(_whole)] | None = None
    """Of ``fail`` and ``restore``, instead of a replica: all replicas of this node, from 0."""
    pool: Literal["prefill", "decode"] | None = None
    """Which of two pools; with one pool, leave it out."""
    replica: Annotated[int, Field(ge=0, le=MOST_REPLICAS), BeforeValidator(_whole)] = 0
    """Position in its pool, from 0; for ``add``, of one that the new one is like."""


class Drawn(Strict):
    """What is drawn for each replica or node, as long as requests are there (`sim.hazards`)."""

    pools: Annotated[list[Literal["prefill", "decode"]], Field(min_length=1)] | None = None
    """Which of two pools it concerns. Default: both."""
    until_s: NotNegative | None = None
    """No spell begins later. Default: as long as a request is there or to come."""
    seed: Seed | None = None
    """Default: that of the experiment. Variants with one seed see the same spells."""


class Failures(Drawn):
    """Failures that are drawn; up-times and down-times are exponential."""

    mtbf_s: Positive
    """Mean time that a replica, or a node, is up."""
    mttr_s: Positive
    """Mean time until it is restored. What it then needs to load and warm up is `restart`."""
    of: Literal["replica", "node"] = "replica"
    """What fails: each replica by itself, or a node with all its replicas."""
    shape: Annotated[float, Field(ge=0.1, le=20)] = 1.0
    """Of a Weibull distribution of the up-times with the same mean; 1: exponential."""


class Stragglers(Drawn):
    """Replicas that are slow for a while, drawn; all times are exponential."""

    mtbs_s: Positive
    """Mean time between two such spells of a replica."""
    duration_s: Positive
    """Mean length of one."""
    factor: Slowness
    """How much longer iterations take, as the decimal number written."""


class Pools(Strict):
    """Either one colocated pool, or a prefill and a decode pool with the link between them."""

    colocated: Pool | None = None
    prefill: Pool | None = None
    decode: Pool | None = None
    transfer: Transfer | None = None
    local_prefill: LocalPrefill | None = None
    """Conditional disaggregation, such as {max_uncached_tokens: 1000, max_queue: 2}. Default: all
    requests are prefilled by the prefill pool."""
    role_switching: RoleSwitching | None = None
    """Let replicas change between the pools, such as {switcher: {name: pressure, ttft_s: 1, tpot_s:
    0.05}}. Default: each keeps its role."""
    mixed_pool: MixedPool | None = None
    """Let replicas run whole requests while the other pool is overloaded, such as
    {max_prompt_tokens: 8192, max_kv_share: 0.9} (Splitwise). Default: each does its own part."""


class Targets(Strict):
    """Latency targets of a request; one that is absent is no target."""

    ttft_s: Positive | None = None
    """Arrival to first token."""
    tpot_s: Positive | None = None
    """Mean gap between tokens of one request."""
    itl_s: Positive | None = None
    """Any gap between two tokens of one request."""
    e2e_s: Positive | None = None
    """Arrival to last token."""


class SLO(Targets):
    """Targets for all requests, and other ones per class."""

    classes: dict[str, Targets] = {}
    """Request class (a trace column) to targets that replace the general ones, key by key."""


class PowerLevels(Strict):
    """What one GPU draws by what its replica does (`sim.cost.Power`)."""

    idle_w: NotNegative
    """Watts with the model loaded and no step in flight."""
    prefill_w: Positive
    """Watts in a step that computes any prompt token."""
    decode_w: Positive
    """Watts in a step of decodes alone."""


class Cost(Strict):
    """What the run costs and draws. Money is asked for by a price sheet or prices, energy by power;
    then every device of the pools has to have them."""

    sheet: str | None = None
    """Prices of a provider (``phasewise list prices``)."""
    price_per_gpu_hour: dict[str, NotNegative] = {}
    """Device to US dollars for one GPU and hour, such as {h100-sxm: 2.5}; before the sheet's."""
    input_price_per_million: NotNegative | None = None
    """US dollars that clients pay for a million prompt tokens, for revenue and margin."""
    output_price_per_million: NotNegative | None = None
    """The same for a million output tokens."""
    power: dict[str, PowerLevels] = {}
    """Device to its power, such as {h200: {idle_w: 120, prefill_w: 600, decode_w: 300}}: measure it
    with your model; we found no published levels to ship."""


class Recording(Strict):
    """What a run leaves behind besides one row per request."""

    steps: bool = True
    """Write steps.parquet, one row per run of iterations. No figure or table needs it."""
    decisions: bool = False
    """Write decisions.jsonl: every iteration with its requests, for `phasewise diff` and other
    tools. It takes time and memory for each token."""
    series_points: Annotated[int, Field(ge=0, le=10**6), BeforeValidator(_whole)] = 500
    """Points of series.parquet (queue, running, KV use) and pools.parquet (replicas, and who waits
    for one), evenly over the arrivals; 0: none."""
    attribution: bool | Literal["always"] = True
    """Write to requests.parquet where the time of each request went, by phase; true: where a
    variant has at most 200,000 requests, as it takes a fifth longer to twice as long."""


class Common(Strict):
    """Keys that mean the same in a file and when resolved."""

    schema_version: Version = SCHEMA_VERSION
    """Version of this schema."""
    name: str = "experiment"
    """Folder of the results. Default: the file's name."""
    about: str = ""
    """What the experiment shows, printed above its table."""
    notes: list[str] = []
    """Sentences for a reader of the results; an engine adds what it does and we do not model."""
    router: Named = {"name": "round-robin"}
    """Which replica a request goes to: a name, or name and options (``phasewise list routers``)."""
    router_snapshot_s: NotNegative = 0.0
    """Routers see the state that replicas had at the last multiple of this, beside what they know
    themselves: what they sent where, and what has ended. 0: the state as it is; else from 0.001."""
    prefix_fetch: PrefixFetch | None = None
    """Let replicas that requests arrive at fetch prefixes from each other's caches, such as
    {bandwidth_bytes_per_s: 50e9}. Default: each has its own only."""
    migration: Migration | None = None
    """Let running requests move between replicas, such as {migrator: llumnix,
    bandwidth_bytes_per_s: 25e9}. Default: none does."""
    admission: Admission = Admission()
    """Who is turned away on arrival; by default nobody who can be served."""
    events: list[Change] = []
    """Changes of the cluster, such as [{at_s: 60, what: fail, replica: 1}]. Those of one instant
    happen in the order of the list."""
    failures: Failures | None = None
    """Failures that are drawn, such as {mtbf_s: 3600, mttr_s: 120}."""
    stragglers: Stragglers | None = None
    """Slow replicas that are drawn, such as {mtbs_s: 600, duration_s: 60, factor: 1.5}."""
    node_replicas: list[list[str]] | None = None
    """The replicas of each node that can fail whole, by name, such as [[replica-0, replica-1],
    [replica-2]]. Default: those on the nodes of the topology."""
    topology: Topology | None = None
    """Nodes, NICs and switches that KV transfers share: the name of a sheet (``phasewise list
    topologies``), or a mapping such as {sheet: dgx-h100, nodes: 4}. Default: none, and `transfer`
    says its bandwidth."""
    on_failure: Literal["reroute", "fail"] = "reroute"
    """Requests of a replica that fails go to another one and prefill what they have, or fail."""
    predictor: Named | None = None
    """Guesses output lengths for the orders that need it (``phasewise list predictors``)."""
    decode_router: Named | None = None
    """Which decode replica a prefilled request goes to. Default: as `router`."""
    slo: SLO = SLO()
    cost: Cost | None = None
    """Money and energy, such as {sheet: runpod}. Default: neither is computed."""
    seed: Seed = 0
    """Every random draw derives from it, by the name of what is drawn."""
    replications: Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)] = 1
    """Runs of each variant, which differ in their seed alone; run k has the same seed in every
    variant. From 3 on there are confidence intervals, and differences between variants are tested.
    """
    warm_up_s: NotNegative = 0.0
    """Requests that arrive in the first seconds are simulated but not measured."""
    drain_s: NotNegative = 0.0
    """Requests that arrive in the last seconds of the arrivals are simulated but not measured."""
    record: Recording = Recording()
    fast_forward: bool = True
    """Advance runs of equal iterations at once: the same integers, sooner."""
    check: bool = False
    """Check the invariants after every step."""


class Saying(Strict):
    """One of several sentences of an `answer`: the first is said whose condition holds."""

    when: str | None = None
    """A comparison of numbers of variants, such as ``cache.ttft_s.mean < no cache.ttft_s.mean``,
    also with ``and``, ``or``, ``not``. The last entry has none."""
    say: str
    """The sentence; see `answer`."""


class Experiment(Common):
    """One variant, resolved: nothing is left to a default or a preset."""

    label: str
    """Name of the variant in tables and figures."""
    workload: Workload
    model: str
    """Model architecture (``phasewise list models``) or the path of a Hugging Face config.json."""
    pools: Pools


POOL_KEYS = tuple(Pool.model_fields)
"""Keys of a pool, accepted at top level for all pools."""
FILE_KEYS = (
    *Experiment.model_fields, *Pool.model_fields, "engine", "compare", "grid", "answer", "sweep"
)  # fmt: skip
"""Keys of a config file."""
