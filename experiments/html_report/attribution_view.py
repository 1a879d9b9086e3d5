"""Where the time of the median and of the P99 request went, per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bundle import Bundle


def shares(bundle: Bundle) -> dict[str, Any]:
    """The parts of one variant; or why it has none."""
    del bundle
    return {"why": "the bundle has no columns of attributed time in requests.parquet"}


def bars(per_variant: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bars of all variants that have parts; or why there are none."""
    return {"variants": list(per_variant)}
