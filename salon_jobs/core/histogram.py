"""Counts durations in fixed buckets, half a doubling wide each, and reads percentiles from the counts."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

# From one millisecond to two hours and twenty minutes. Stored counts depend on them: they never change.
BOUNDS_S: Final = tuple(0.001 * 2 ** (half / 2) for half in range(47))
BUCKETS: Final = len(BOUNDS_S) + 1
_EDGES: Final = tuple(pairwise(BOUNDS_S))


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration: 0 below the first bound, the last from the last bound on."""
    return bisect(BOUNDS_S, seconds)


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return what ``share`` (0 to 1) of the counted durations do not exceed, in seconds; None when nothing is counted.

    The answer lies in the bucket of the true one (nearest rank), so it is off by half a doubling at most; in the first
    bucket by a millisecond; of the last bucket, which has no end, the lower bound is told.
    """
    rank = max(1, math.ceil(share * sum(counts)))
    for bucket, count in enumerate(counts):
        if rank <= count:
            return _within(bucket, (rank - 0.5) / count)
        rank -= count
    return None


def _within(bucket: int, position: float) -> float:
    if bucket == 0:
        return BOUNDS_S[0] * position
    if bucket == BUCKETS - 1:
        return BOUNDS_S[-1]
    lower, upper = _EDGES[bucket - 1]
    return lower * math.pow(upper / lower, position)
