"""Whatever stands as the value of a key, a config is a plan or one line: never a traceback."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from experiments import parts
from experiments.config import load
from experiments.layers import unfold
from experiments.options import names
from experiments.schema import (
    SLO,
    Arrivals,
    Delay,
    Experiment,
    Pool,
    Sessions,
    Transfer,
    Workload,
)
from kernels_profile.host import HostOverhead
from policies import ORDERS, POLICIES, PREDICTORS, ROUTERS
from sim.errors import PhasewiseError
from sim.step_time import LinearStepTime

BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 3, "max_tokens": 64},
    "model": "llama-3.1-8b",
    "policy": "sarathi",
    "max_model_len": 4096,
    "step_time": {"model": "linear", "base_s": 0.01},
}
DISAGGREGATED: dict[str, Any] = {
    "pools": {
        "prefill": {"replicas": 1},
        "decode": {"replicas": 1},
        "transfer": {"bandwidth_bytes_per_s": 1e9},
    }
}
ODD: list[Any] = [
    *(math.inf, -math.inf, math.nan, -1, 0, 1, 0.5, -0.5, 1e300, -1e300, 1e-300, 10**5000),
    *(10**18, 2**64, "", "many", "x" * 500, "\0", [], [1, 2], [math.nan, 1], [0, 1e-300], {}),
    *({"a": 1}, None, True, False),
]


def keys_of(model: type[BaseModel], at: str = "") -> Iterator[str]:
    """Dotted keys of a model and of the models inside it."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        yield f"{at}{name}"
        if isinstance(inner, type) and issubclass(inner, BaseModel) and name != "pools":
            yield from keys_of(inner, f"{at}{name}.")


def registered() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option of every thing that has a name, with the name chosen."""
    kinds = {"policy": POLICIES, "router": ROUTERS, "order": ORDERS, "predictor": PREDICTORS}
    for kind, registry in kinds.items():
        for name, cls in registry.items():
            for option in names(cls):
                yield f"{kind}.{option}", {kind: {"name": name}}
    for term in names(LinearStepTime):
        yield f"step_time.{term}", {}
    for term in names(HostOverhead):
        host = {"step_us": 1.0, "request_us": 1.0}
        yield f"step_time.host.{term}", {"step_time": {"model": "roofline", "host": host}}


PLACES: list[tuple[str, dict[str, Any]]] = [
    *((key, {}) for key in (*keys_of(Experiment), *keys_of(Pool))),
    *((f"workload.arrivals.{key}", _process) for key in Arrivals.model_fields for _process in (
        {"workload": {"arrivals": {"process": process}}}
        for process in ("poisson", "gamma", "constant", "burst", "closed-loop", "recorded")
    )),
    *((f"pools.transfer.{key}", DISAGGREGATED) for key in Transfer.model_fields),
    *((f"pools.decode.{key}", DISAGGREGATED) for key in keys_of(Pool)),
    *((f"slo.classes.chat.{key}", {}) for key in SLO.model_fields if key != "classes"),
    *((f"workload.{key}", {}) for key in Workload.model_fields),
    *((f"workload.sessions.{key}", {}) for key in Sessions.model_fields),
    *((f"workload.sessions.delay.{key}", {"workload": {"sessions": {"delay": word}}})
      for key in Delay.model_fields for word in ("recorded", "gamma")),
    *(("compare", {}), ("grid", {}), ("grid.seed", {}), ("engine", {}), ("max_num_seqs", {})),
    *registered(),
]  # fmt: skip


def one_line_or_plan(key: str, beside: dict[str, Any], value: Any) -> None:
    config = {**BASE, **beside}
    if "workload" in beside:
        config["workload"] = {**BASE["workload"], **beside["workload"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plan = load(config, overrides=unfold({key: value}, ""))
        except PhasewiseError as error:
            line = str(error)
        else:
            line = plan.source
    assert line.strip()
    assert "\n" not in line
    assert len(line) < 1200  # some list every choice


@pytest.mark.parametrize("value", ODD, ids=lambda value: parts.options.shown(value)[:20])
def test_an_odd_value_of_any_key_is_one_line_or_a_plan(value: Any) -> None:
    for key, beside in PLACES:
        one_line_or_plan(key, beside, value)


scalars = (
    st.floats()
    | st.integers()
    | st.integers(10**15, 10**400)
    | st.text(max_size=20)
    | st.booleans()
    | st.none()
    | st.lists(st.floats() | st.integers(), max_size=3)
)


@given(place=st.sampled_from(PLACES), value=scalars)
@settings(max_examples=300, deadline=None)
def test_any_value_of_any_key_is_one_line_or_a_plan(
    place: tuple[str, dict[str, Any]], value: Any
) -> None:
    key, beside = place
    one_line_or_plan(key, beside, value)


def test_the_engines_own_word_for_no_limit_is_read() -> None:
    options = {"name": "vllm-v1", "long_prefill_token_threshold": 0}

    assert load({**BASE, "policy": options}).variants


@pytest.mark.parametrize("text", ["a: \0b", "a: \x07", "\ufffe", "0x" + "f" * 9000, "9" * 9000])
def test_odd_text_of_a_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(f"seed: {text}")

    with pytest.raises(PhasewiseError) as error:
        load(path)

    assert "\n" not in str(error.value)
