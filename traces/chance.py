"""Named random generators, so that each purpose draws the same whatever the others draw."""

from __future__ import annotations

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The generator of one purpose (``arrivals``, ``lengths``) under the experiment's seed."""
    return np.random.default_rng([seed, crc32(purpose.encode())])
