"""Waiting jobs: why they do not run yet, and how many wait, counted from a bounded number of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections
from django.utils import timezone
from django.utils.translation import gettext, ngettext

from salon_jobs.conf import settings as conf
from salon_jobs.core import metrics
from salon_jobs.core.metrics import Sample
from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.units import gettext_noop
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.jobs.held import holders_of
from salon_jobs.jobs.limits import Limits, load_limits, scopes_of
from salon_jobs.models import Job, Process
from salon_jobs.words import duration, pause_details, rate_text, scope_words

# What says which job holds a limit or a key; pages link what follows "#".
HELD_BY: Final = gettext_noop("held by #%(id)s")


@dataclass(frozen=True, slots=True)
class Running:
    """Running jobs in a scope of limits: how many, and the one that has run longest, its store and since when."""

    jobs: int
    longest_id: int
    store_id: StoreId | None
    since: datetime | None

    def merged_with(self, other: Running) -> Running:
        """Return those of both."""
        never = datetime.max.replace(tzinfo=UTC)
        longest = min(self, other, key=lambda each: (each.since or never, each.longest_id))
        return replace(longest, jobs=self.jobs + other.jobs)


@dataclass(frozen=True, slots=True)
class StartConditions:
    """Facts that decide whether jobs start: limits, their use, and the queues of live workers (None: all)."""

    limits: Limits
    running: Mapping[str, Running]
    served: Sequence[Sequence[str] | None]
    known_tasks: frozenset[str]
    store_name: Callable[[StoreId], str]

    def reasons(self, job: Any, now: datetime) -> list[str]:
        """Return the reasons why a queued job does not start, in words; none if it only waits for its turn."""
        found: list[str] = []
        if ahead := due_in(job, now):
            found.append(ahead)
        if job.task not in self.known_tasks:
            found.append(gettext("no task %(task)s is declared here") % {"task": repr(job.task)})
        if not self.served:
            found.append(gettext("no worker is running"))
        elif not any(serves(queues, job.queue) for queues in self.served):
            found.append(gettext("no worker serves queue %(queue)s") % {"queue": job.queue})
        for scope in scopes_of(job.queue, job.task, job.store_id, job.concurrency_key):
            limit, (kind, _, of) = self.limits[scope], scope.partition(":")
            name = scope_words(kind, self.store_name(job.store_id) if kind == "store" and job.store_id else of)
            if limit.paused:
                at = limit.paused_at and timezone.localtime(limit.paused_at)
                said = gettext("%(name)s is paused %(details)s")
                found.append((said % {"name": name, "details": pause_details(limit.paused_by, at)}).rstrip())
            elif limit.max_concurrency is not None:
                running = self.running.get(scope)
                if running is not None and running.jobs >= limit.max_concurrency:
                    said = ngettext(
                        "%(name)s: %(jobs)s job running, limit %(limit)s",
                        "%(name)s: %(jobs)s jobs running, limit %(limit)s",
                        running.jobs,
                    )
                    said %= {"name": name, "jobs": f"{running.jobs:,}", "limit": f"{limit.max_concurrency:,}"}
                    found.append(f"{said}: {self._held_by(running, now)}")
            elif limit.rate is not None:
                found.append(gettext("%(name)s is limited to %(rate)s") % {"name": name, "rate": rate_text(limit.rate)})
        return found

    def _held_by(self, running: Running, now: datetime) -> str:
        """Name the job that has run longest in a scope that is full."""
        told = [gettext(HELD_BY) % {"id": running.longest_id}]
        if running.store_id is not None:
            told.append(self.store_name(running.store_id))
        if running.since is not None:
            told.append(gettext("running for %(time)s") % {"time": duration((now - running.since).total_seconds())})
        return ", ".join(told)


def serves(queues: Sequence[str] | None, queue: str) -> bool:
    """Return whether a process with these queues in its row serves one; None means all, and "!" excludes a queue."""
    if queues is None or queue in queues:
        return True
    return any(name.startswith("!") for name in queues) and f"!{queue}" not in queues


def served_in_words(queues: Sequence[str] | None) -> str:
    """Return in words the queues of a process, from its row: "all", "mail, night" or "all but dawn"."""
    if not queues:
        return gettext("all")
    excluded = [name[1:] for name in queues if name.startswith("!")]
    return gettext("all but %(queues)s") % {"queues": ", ".join(excluded)} if excluded else ", ".join(queues)


def due_in(job: Any, now: datetime) -> str:
    """Return in words when a queued job becomes due, or "" if it is due."""
    if job.is_held:
        if job.ordered:
            return gettext("comes after other jobs with its concurrency key")
        return gettext("comes after other jobs of its flow")
    ahead_s = (job.run_at - now).total_seconds()
    said = gettext("retry in %(time)s") if job.attempts else gettext("due in %(time)s")
    return said % {"time": duration(ahead_s)} if ahead_s > 0 else ""


def start_conditions(*, using: str, now: datetime, store_name: Callable[[StoreId], str]) -> StartConditions:
    """Load the facts that decide whether jobs start, in two or three queries. Role: operator, worker."""
    limits = load_limits(using=using)
    workers = Process.objects.using(using).filter(kind="worker").order_by("-heartbeat_at")[:1000]
    rows: list[tuple[Any, datetime]] = list(workers.values_list("queues", "heartbeat_at"))
    return StartConditions(
        limits,
        _running_by_scope(using) if limits else {},
        [queues for queues, beat in rows if now - beat < conf.process_silent_after],
        frozenset(registry.task_names()),
        store_name,
    )


def _running_by_scope(using: str) -> dict[str, Running]:
    found: dict[str, Running] = {}
    for queue, task, store_id, key, jobs, longest_id, since in statements.rows("running_longest", using=using):
        for scope in scopes_of(queue, task, store_id, key):
            running = Running(jobs, longest_id, store_id, since)
            found[scope] = running if scope not in found else found[scope].merged_with(running)
    return found


# For how long a job that could run has been due when its row may be locked: claims pass over it then.
PASSED_OVER: Final = timedelta(seconds=30)


def _passed_over(jobs: Sequence[Job], using: str) -> dict[int, str]:
    """Return the sessions that hold rows of jobs that could run and have been due for long."""
    said = gettext("its row is held by %(session)s")
    holders = holders_of(Job, '"id"', [job.pk for job in jobs], using=using) if jobs else {}
    return {int(job_id): said % {"session": holder.name} for job_id, holder in holders.items()}


def waiting_reasons(
    jobs: Iterable[Job], *, using: str, now: datetime, store_name: Callable[[StoreId], str] = str
) -> dict[int, str]:
    """Return for each queued job why it does not run yet; "" if it only waits for its turn.

    Four queries at most, for any number of jobs, plus those of ``store_name``. Role: operator, worker.
    """
    queued = [job for job in jobs if job.state == str(JobState.QUEUED)]
    if not queued:
        return {}
    conditions = start_conditions(using=using, now=now, store_name=store_name)
    reasons = {job.pk: "; ".join(conditions.reasons(job, now)) for job in queued}
    long_due = [job for job in queued if not reasons[job.pk] and now - job.run_at > PASSED_OVER]
    return {**reasons, **_passed_over(long_due, using)}


# Most jobs to count, and most to count by store, which reads the rows and not just an index.
_COUNTED: Final = 10_000
_COUNTED_BY_STORE: Final = 2000
# For an estimate: most pages of the table to read, most claim groups to step through (groups that differ only by key
# count as one), and most stores to return.
_PAGES: Final = 1000
_CLAIM_GROUPS: Final = 1000
_STORES: Final = 10


@dataclass(frozen=True, slots=True)
class Depth:
    """Numbers of waiting and due jobs of a queue or store, and how long the oldest has been due.

    Due jobs of a paused queue, task or store count only as ``paused``: they are not late.
    """

    waiting: int
    due: int
    oldest_due_s: float | None
    paused: int = 0

    def at_least(self, other: Depth) -> Depth:
        """Return the larger of each value."""
        ages = [age for age in (self.oldest_due_s, other.oldest_due_s) if age is not None]
        waiting, due, paused = (max(getattr(self, name), getattr(other, name)) for name in ("waiting", "due", "paused"))
        return Depth(waiting, due, max(ages, default=None), paused)


@dataclass(frozen=True, slots=True)
class Depths:
    """Waiting jobs by queue, and by store for the ten stores with the most; estimated if not ``exact``."""

    queues: Mapping[str, Depth]
    stores: Mapping[str, Depth]
    exact: bool
    stores_exact: bool


def depths(*, using: str) -> Depths:
    """Count waiting jobs. Role: worker, operator. Costs the same with ten thousand queued jobs as with millions."""
    bounds = {"most": _COUNTED, "few": _COUNTED_BY_STORE, "stores": _STORES}
    kinds, pages, counted = _read("count_waiting", bounds, using)
    queues, stores, exact = kinds["queue"], kinds["store"], counted < _COUNTED
    stores_exact = counted < _COUNTED_BY_STORE
    if not stores_exact:
        percent = min(100.0, 100 * _PAGES / max(1, pages))
        parameters = {"percent": percent, "claim_groups": _CLAIM_GROUPS, "stores": _STORES}
        estimates, _, _ = _read("estimate_waiting", parameters, using)
        stores = estimates["store"]
        for name, depth in () if exact else estimates["queue"].items():
            queues[name] = depth.at_least(queues.get(name, Depth(0, 0, None)))
    return Depths(queues, stores, exact, stores_exact)


def record_depths(*, using: str) -> None:
    """Record this minute's counts, unless another worker has. Idempotent. Worker role, autocommit."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM salon_jobs_queue_minute WHERE minute = date_trunc('minute', now()))")
        if cursor.fetchone()[0]:
            return
        now = depths(using=using)
        rows = [
            {"queue": name, **asdict(depth), "oldest_due_s": depth.oldest_due_s or 0.0, "exact": now.exact}
            for name, depth in with_declared(now.queues).items()
        ]
        statements.execute("record_waiting", {"rows": json.dumps(rows)}, using=using)


def with_declared(queues: Mapping[str, Depth]) -> dict[str, Depth]:
    """Return the queues by name, including empty ones that tasks declare."""
    return {name: queues.get(name, Depth(0, 0, None)) for name in sorted({*registry.queue_names(), *queues})}


def _read(statement: str, parameters: dict[str, Any], using: str) -> tuple[dict[str, dict[str, Depth]], int, int]:
    """Return the depths by kind and name, the table's pages, and the number of jobs counted."""
    kinds: dict[str, dict[str, Depth]] = {"queue": {}, "store": {}}
    pages = counted = 0
    for kind, name, waiting, due, oldest_s, paused in statements.rows(statement, parameters, using=using):
        if kind == "all":
            counted, pages = waiting, due
        else:
            kinds[kind][name] = Depth(int(waiting), int(due), oldest_s, int(paused))
    return kinds, pages, counted


@dataclass(frozen=True, slots=True)
class QueueFront:
    """Lateness of the oldest due job of a registered task in seconds, and the due tasks not registered here.

    ``due`` counts the first 10,000 due jobs by queue, ``unknown_jobs`` those of unregistered tasks; ``late_s`` is how
    late the oldest of the others is, by queue. ``unknown_late_s`` is that of those tasks, if there are any. Paused jobs
    count only in ``paused``.
    """

    lag_s: float = 0.0
    unknown_tasks: tuple[str, ...] = ()
    unknown_jobs: int = 0
    unknown_late_s: float | None = None
    due: Mapping[str, int] = field(default_factory=dict[str, int])
    late_s: Mapping[str, float] = field(default_factory=dict[str, float])
    paused: Mapping[str, int] = field(default_factory=dict[str, int])

    def samples(self) -> list[Sample]:
        """Return the metrics samples."""
        return [
            Sample(metrics.UNKNOWN_TASKS, len(self.unknown_tasks)),
            *(Sample(metrics.QUEUE_DEPTH, count, (queue, "due")) for queue, count in self.due.items()),
            *(Sample(metrics.QUEUE_DEPTH, count, (queue, "paused")) for queue, count in self.paused.items()),
            *(Sample(metrics.OLDEST_DUE, late_s, (queue,)) for queue, late_s in self.late_s.items()),
        ]


def look_at_queue(*, using: str) -> QueueFront:
    """Inspect the front of the queue. Role: worker, operator; others see too few jobs. Raises database errors."""
    [front] = statements.rows("queue_front", {"tasks": registry.task_names()}, using=using)
    lag_s, unknown, unknown_jobs, unknown_late_s, queues, due, late_s, paused = front
    return QueueFront(
        lag_s or 0.0,
        tuple(unknown or ()),
        unknown_jobs,
        unknown_late_s,
        _positive(queues, due),
        {queue: late for queue, late in zip(queues, late_s, strict=True) if late is not None},
        _positive(queues, paused),
    )


def _positive(queues: list[str], counts: list[int]) -> dict[str, int]:
    return {queue: count for queue, count in zip(queues, counts, strict=True) if count}


def count_rest(*, using: str) -> dict[tuple[str, str], int]:
    """Count scheduled and failed jobs by queue and state, bounded by queue_rest. Raises database errors."""
    return {(queue, state): count for queue, state, count in statements.rows("queue_rest", using=using)}
