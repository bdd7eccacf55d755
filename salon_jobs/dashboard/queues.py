"""Waiting, running and failing jobs of each queue and store, now and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext_lazy

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.metrics import percentile
from salon_jobs.core.records import StoreId
from salon_jobs.db import clock
from salon_jobs.db.statements import rows
from salon_jobs.jobs.waiting import Depth, depths, with_declared
from salon_jobs.models import Limit
from salon_jobs.tenancy.names import store_names
from salon_jobs.words import scope_words, who_paused

HOUR: Final = timedelta(hours=1)
_RATE_MINUTES: Final = 5


@dataclass(frozen=True, slots=True)
class QueueAtWork:
    """One queue: jobs per minute over the last five minutes (None: unknown), and failures of the last hour."""

    name: str
    depth: Depth
    in_a_minute: float | None
    out_a_minute: float
    failed: int
    retried: int
    paused: bool


@dataclass(frozen=True, slots=True)
class StoreAtWork:
    """One of the stores with the most jobs waiting."""

    store: str
    depth: Depth
    paused: bool


@dataclass(frozen=True, slots=True)
class FailingStore:
    """One of the stores with the most failed attempts in the last hour."""

    store: StoreId
    attempts: int
    jobs: int
    error_class: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queues and stores; if not exact, their depths are estimates. ``paused``: scopes, by whom, since when."""

    queues: tuple[QueueAtWork, ...]
    stores: tuple[StoreAtWork, ...]
    exact: bool
    stores_exact: bool
    paused: tuple[str, ...]

    @property
    def waiting(self) -> int:
        return sum(queue.depth.waiting for queue in self.queues)

    @property
    def due(self) -> int:
        return sum(queue.depth.due for queue in self.queues)

    @property
    def paused_jobs(self) -> int:
        """Jobs of all queues that would be due, but are paused."""
        return sum(queue.depth.paused for queue in self.queues)

    @property
    def oldest_due_s(self) -> float | None:
        """Seconds that the oldest due job has been due."""
        return max(
            (each.depth.oldest_due_s for each in self.queues if each.depth.oldest_due_s is not None), default=None
        )


def waiting(*, using: str) -> Waiting:
    """Read the queues in three queries, or four when more jobs wait than are counted. Role: operator, worker."""
    waiting = depths(using=using)
    rates = {row[0]: row[1:] for row in rows("queue_rates", {"last": HOUR}, using=using)}
    pauses = list(Limit.objects.using(using).filter(paused=True).order_by("kind", "name")[:200])
    paused = {(row.kind, row.name) for row in pauses}
    parse = store_key().parse
    names = store_names(parse(row.name) for row in pauses if row.kind == Limit.Kind.STORE.value)
    shown: list[str] = []
    for row in pauses:
        name = names[parse(row.name)] if row.kind == Limit.Kind.STORE.value else row.name
        who = who_paused(row)
        shown.append(f"{scope_words(row.kind, name)}{f' ({who})' if who else ''}")
    queues = with_declared({**{name: Depth(0, 0, None) for name in rates}, **waiting.queues})
    return Waiting(
        queues=tuple(
            _queue(name, depth, rates.get(name, (0, None, 0, 0)), paused=("queue", name) in paused)
            for name, depth in queues.items()
        ),
        stores=tuple(
            StoreAtWork(name, depth, ("store", name) in paused)
            for name, depth in sorted(waiting.stores.items(), key=lambda each: -each[1].waiting)
        ),
        exact=waiting.exact,
        stores_exact=waiting.stores_exact,
        paused=tuple(shown),
    )


def failing_stores(*, using: str) -> tuple[FailingStore, ...]:
    """Return the stores with the most failed attempts in the last hour. Role: operator, worker."""
    return tuple(FailingStore(*row) for row in rows("failing_stores", {"last": HOUR}, using=using))


def _queue(name: str, depth: Depth, rate: tuple[Any, ...], *, paused: bool) -> QueueAtWork:
    ended, growth, failed, retried = rate
    # Arrivals are the jobs that ended plus the growth of the backlog.
    came = None if growth is None else max(0, ended + growth) / _RATE_MINUTES
    return QueueAtWork(name, depth, came, ended / _RATE_MINUTES, failed, retried, paused)


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time, and of the steps into which it is divided."""

    length: timedelta
    step: timedelta
    label: Any


SPANS: Final[Mapping[str, Span]] = {
    "hour": Span(timedelta(hours=1), timedelta(minutes=1), gettext_lazy("Last hour")),
    "day": Span(timedelta(days=1), timedelta(minutes=15), gettext_lazy("Last day")),
    "week": Span(timedelta(days=7), timedelta(hours=2), gettext_lazy("Last week")),
}


# A minute that has just begun has no rate yet: workers count every five seconds.
_LEAST_RUNNING: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Step:
    """Values of one step; rates are per minute, waits in seconds. None: unknown."""

    at: datetime
    succeeded: float = 0.0
    retried: float = 0.0
    failed: float = 0.0
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    waiting: int | None = None
    due: int | None = None
    running: bool = False


def history(
    span: Span,
    *,
    using: str,
    now: datetime | None = None,
    task: str | None = None,
    queue: str | None = None,
    with_running: bool = False,
) -> tuple[Step, ...]:
    """Return the steps up to ``now``, of all runs or those of a task or queue, in two queries. Role: operator, worker.

    ``now`` is the database's time unless given.
    The last step covers at least a minute: one that has just begun would look as if everything had stopped.
    ``with_running`` another one follows, which is marked: that of the minute that is not over.
    """
    step_s = span.step.total_seconds()
    until = now or clock.now(using)
    ended = until - timedelta(minutes=1)
    first = ended.timestamp() - span.length.total_seconds() + step_s
    since = datetime.fromtimestamp(first - first % step_s, tz=until.tzinfo)
    values = {"step": span.step, "since": since, "task": task, "queue": queue}
    runs = {row[0]: row[1:] for row in rows("runs_over_time", values, using=using)}
    depths = {row[0]: row[1:] for row in rows("depth_over_time", values, using=using)}
    steps: list[Step] = []
    at = since
    last = until - _LEAST_RUNNING if with_running else ended
    while at <= last:
        minutes = min(step_s, (until - at).total_seconds()) / 60
        waiting, due = depths.get(at, (None, None))
        if (found := runs.get(at)) is None:
            steps.append(Step(at, waiting=waiting, due=due, running=at > ended))
        else:
            succeeded, retried, failed, waits, most_s = found
            p50_s, p95_s = percentile(waits, 0.5, most_s), percentile(waits, 0.95, most_s)
            rates = [count / minutes for count in (succeeded, retried, failed)]
            steps.append(Step(at, rates[0], rates[1], rates[2], p50_s, p95_s, waiting, due, at > ended))
        at += span.step
    return tuple(steps)


LOOKED_AT: Final = 10_000


@dataclass(frozen=True, slots=True)
class TaskOfStore:
    """Counts of the newest jobs of one task; ``oldest_due_s`` is how long the oldest due one of them has been due."""

    task: str
    waiting: int
    due: int
    running: int
    failed: int
    cancelled: int
    jobs: int
    oldest_due_s: float | None


def tasks_of(store: StoreId, *, using: str) -> tuple[TaskOfStore, ...]:
    """Count the newest 10,000 jobs of the current store. Call it inside ``tenant_context``. Role: web."""
    return tuple(TaskOfStore(*row) for row in rows("store_at_work", {"store": store, "most": LOOKED_AT}, using=using))
