"""Says when whoever adds jobs at a steady rate makes each call; the Python programs of the peers import it as well."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


def due_times(calls: int, rate: float, start_ns: int) -> Iterator[int]:
    """Yield when each call is due, on the monotonic clock: even gaps, each up to half longer or shorter by chance.

    Who is late makes the call at once, so that the rate is kept whatever a call takes.
    """
    due_ns = max(float(start_ns), time.monotonic_ns())
    for _ in range(calls):
        yield round(due_ns)
        due_ns += random.uniform(0.5, 1.5) * 1e9 / rate  # noqa: S311 - no secret


def pause_s(due_ns: int) -> float:
    """Return for how long to sleep until then; 0 when it is over."""
    return max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
