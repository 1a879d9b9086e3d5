"""What moving KV cost: pure functions of the transfers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.metrics import NS_PER_S, distribution
from sim.request import Ints


def of_transfers(transfers: Mapping[str, Ints]) -> dict[str, Any]:
    """Sum up transfers that ended.

    A transfer *waits* from the end of the prefill until it starts, for room on the decode replica
    (0 if it starts before). It is *exposed* from its start, or from the end of the prefill if that
    is later, until its end: this is what the second token waits for. *Hidden* is what the overlap
    with the prefill saves: of the time that the transfers would take if each had its links to
    itself and began when the prefill had ended, the share that is not exposed. Contention exposes
    more than that time, which hides nothing.

    Args:
        transfers: Columns `sim.records.TRANSFER_COLUMNS`.

    Returns:
        Number, KV bytes, distributions of waiting and exposed times in seconds, and the hidden
        share, NaN without any.
    """
    start, end, prefilled = (transfers[name] for name in ("start_ns", "end_ns", "prefilled_ns"))
    exposed = end - np.maximum(start, prefilled)
    alone = transfers["alone_ns"]
    seen = np.minimum(alone, exposed).sum()
    return {
        "count": len(end),
        "kv_bytes": int(transfers["bytes"].sum()),
        "wait_s": distribution(np.maximum(0, start - prefilled) / NS_PER_S),
        "exposed_s": distribution(exposed / NS_PER_S),
        "hidden_share": float(1 - seen / alone.sum()) if len(end) else float("nan"),
    }
