"""Declares ``SALON_JOBS["READINESS"]``: from when on a process says that it is not ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from salon_jobs.core.errors import NotReady
from salon_jobs.sections.reading import duration, setting

EVERY_OTHER_QUEUE: Final = "*"
_off = duration(optional=True)


def _by_queue(value: Any) -> dict[str, timedelta]:
    """Read a dict of queues to durations; a duration by itself is every queue's."""
    given: dict[Any, Any] = cast("Any", value) if isinstance(value, dict) else {EVERY_OTHER_QUEUE: value}
    read = duration()
    try:
        if not all(isinstance(queue, str) and queue for queue in given):
            raise ValueError
        return {queue: read(limit) for queue, limit in given.items()}
    except ValueError:
        raise ValueError("a duration, or a dict of queues ('*': every other) to durations") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessSettings:
    """Holds how old what readiness looks at may be; None: any age. ``oldest_due`` is by queue.

    On by default is what ails the process itself. What ails the whole (jobs or messages that are late, a writer that
    holds the gate, wake-ups that are not heard) is off: no other process would do better, and metrics tell it.
    """

    loop_stale: timedelta = setting(timedelta(seconds=30), duration())
    last_sweep: timedelta | None = setting(timedelta(seconds=60), _off)
    last_tick: timedelta | None = setting(timedelta(minutes=2), _off)
    broker: timedelta | None = setting(timedelta(seconds=30), _off)
    listener_silent: timedelta | None = setting(None, _off)
    oldest_due: Mapping[str, timedelta] = setting(dict[str, timedelta], _by_queue)
    relay_lag: timedelta | None = setting(None, _off)
    gate_held: timedelta | None = setting(None, _off)

    def require(self, key: str, age_s: float, complaint: str) -> None:
        """Raise NotReady with the complaint when an age is above the threshold of this name."""
        limit: timedelta | None = getattr(self, key)
        if limit is not None and age_s > limit.total_seconds():
            raise NotReady(
                f"{complaint} for {age_s:.0f} s; READINESS[{key.upper()!r}] allows {limit.total_seconds():g} s"
            )

    def require_due(self, queue: str, late_s: float) -> None:
        """Raise NotReady when the oldest due job of a queue is later than that queue allows."""
        limit = self.oldest_due.get(queue, self.oldest_due.get(EVERY_OTHER_QUEUE))
        if limit is not None and late_s > limit.total_seconds():
            raise NotReady(
                f"a job of queue {queue!r} has been due for {late_s:.0f} s; READINESS['OLDEST_DUE'] allows"
                f" {limit.total_seconds():g} s"
            )
