"""Waiting jobs: why they do not run yet, and how many wait, counted from a bounded number of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.jobs.held import holders_of
from salon_jobs.jobs.limits import LIFTED, Limits, load_limits, scopes_of
from salon_jobs.models import Job, Process
from salon_jobs.words import duration, pause_details, rate_text, scope_words


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Reason why a job does not run yet. ``job_id`` is a job that it waits for, which ``text`` calls by its number.

    ``kind`` is for programs: early, key or flow (it is held), undeclared, unserved, paused, limit, rate or locked.
    """

    kind: str
    text: str
    job_id: int | None = None

    def around(self) -> tuple[str, str, str]:
        """Return the text before the other job's number, the number, and the rest; without one, all is before it."""
        return self.text.partition(f"#{self.job_id}") if self.job_id is not None else (self.text, "", "")


def in_words(reasons: Iterable[WaitReason]) -> str:
    """Return the texts of reasons on one line."""
    return "; ".join(each.text for each in reasons)


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
    """Facts that decide whether jobs start: limits, their use, and the queues of live workers (None: all).

    ``tokens`` are the starts that each rate among them allows now; below 1, the next one comes later.
    """

    limits: Limits
    running: Mapping[str, Running]
    tokens: Mapping[str, float]
    served: Sequence[Sequence[str] | None]
    known_tasks: frozenset[str]
    store_name: Callable[[StoreId], str]

    def reasons(self, job: Any, now: datetime) -> list[WaitReason]:
        """Return the reasons why a queued job that is due does not start; none if it only waits for its turn."""
        found: list[WaitReason] = []
        if job.task not in self.known_tasks:
            said = gettext("no task %(task)s is declared here")
            found.append(WaitReason("undeclared", said % {"task": repr(job.task)}))
        if not self.served:
            found.append(WaitReason("unserved", gettext("no worker is running")))
        elif not any(serves(queues, job.queue) for queues in self.served):
            found.append(WaitReason("unserved", gettext("no worker serves queue %(queue)s") % {"queue": job.queue}))
        for scope in scopes_of(job.queue, job.task, job.store_id, job.concurrency_key):
            limit, (kind, _, of) = self.limits[scope], scope.partition(":")
            name = scope_words(kind, self.store_name(job.store_id) if kind == "store" and job.store_id else of)
            most = LIFTED if limit.max_concurrency is None else limit.max_concurrency
            if limit.paused:
                at = limit.paused_at and timezone.localtime(limit.paused_at)
                said = gettext("%(name)s is paused %(details)s") % {
                    "name": name,
                    "details": pause_details(limit.paused_by, at),
                }
                found.append(WaitReason("paused", said.rstrip()))
            elif (running := self.running.get(scope)) is not None and running.jobs >= most:
                said = ngettext(
                    "%(name)s: %(jobs)s job running, limit %(limit)s",
                    "%(name)s: %(jobs)s jobs running, limit %(limit)s",
                    running.jobs,
                )
                said %= {"name": name, "jobs": f"{running.jobs:,}", "limit": f"{most:,}"}
                found.append(WaitReason("limit", f"{said}: {self._held_by(running, now)}", running.longest_id))
            elif limit.blocks:
                found.append(WaitReason("limit", gettext("%(name)s: limited to 0 running jobs") % {"name": name}))
            elif limit.rate is not None:
                said = gettext("%(name)s is limited to %(rate)s") % {"name": name, "rate": rate_text(limit.rate)}
                if (missing := 1 - self.tokens.get(scope, 1.0)) > 0:
                    next_in = gettext("the next may start in %(time)s") % {"time": duration(missing / limit.rate)}
                    said = f"{said}: {next_in}"
                found.append(WaitReason("rate", said))
        return found

    def _held_by(self, running: Running, now: datetime) -> str:
        """Name the job that has run longest in a scope that is full."""
        told = [gettext("held by #%(id)s") % {"id": running.longest_id}]
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


def not_due(jobs: Iterable[Any], *, using: str, now: datetime) -> dict[int, list[WaitReason]]:
    """Return for each queued job why it is not due, in one query if some of them are held; no reason if it is due.

    Role: operator, worker; web for its store.
    """
    queued = [job for job in jobs if job.state == str(JobState.QUEUED)]
    held = [job.pk for job in queued if job.is_held]
    behind: dict[int, tuple[str, int, bool]] = {}
    for job_id, *before in statements.rows("held_behind", {"ids": held}, using=using) if held else ():
        behind[job_id] = (before[0], before[1], before[2])
    return {job.pk: list(_not_due(job, behind.get(job.pk), now)) for job in queued}


def _not_due(job: Any, behind: tuple[str, int, bool] | None, now: datetime) -> Iterator[WaitReason]:
    ahead_s = (job.run_at - now).total_seconds()
    if not job.is_held:
        if ahead_s > 0:
            said = gettext("retry in %(time)s") if job.attempts else gettext("due in %(time)s")
            yield WaitReason("early", said % {"time": duration(ahead_s)})
    elif behind is None:  # the transaction that ends the one before it has locked it
        if job.ordered:
            yield WaitReason("key", gettext("comes after other jobs with its concurrency key"))
        else:
            yield WaitReason("flow", gettext("comes after other jobs of its flow"))
    else:
        kind, job_id, has_more = behind
        if kind == "key":
            said = gettext("comes after #%(id)s, which has its concurrency key")
        elif has_more:
            said = gettext("comes after #%(id)s and others of its flow")
        else:
            said = gettext("comes after #%(id)s of its flow")
        yield WaitReason(kind, said % {"id": job_id}, job_id)


def start_conditions(
    jobs: Iterable[Any], *, using: str, now: datetime, store_name: Callable[[StoreId], str]
) -> StartConditions:
    """Load the facts that decide whether these jobs start, in two to four queries. Role: operator, worker."""
    limits = load_limits(using=using)
    workers = Process.objects.using(using).filter(kind="worker").order_by("-heartbeat_at")[:1000]
    rows: list[tuple[Any, datetime]] = list(workers.values_list("queues", "heartbeat_at"))
    return StartConditions(
        limits,
        _running_by_scope(using) if limits else {},
        _tokens(limits, jobs, using) if limits else {},
        [queues for queues, beat in rows if now - beat < conf.process_silent_after],
        frozenset(registry.task_names()),
        store_name,
    )


def _tokens(limits: Limits, jobs: Iterable[Any], using: str) -> dict[str, float]:
    of_jobs = {scope for job in jobs for scope in scopes_of(job.queue, job.task, job.store_id, job.concurrency_key)}
    rated = {scope: limit for scope in sorted(of_jobs) if (limit := limits[scope]).rate is not None}
    rates, bursts = [limit.rate for limit in rated.values()], [limit.bucket for limit in rated.values()]
    buckets: dict[str, Any] = {"scopes": list(rated), "rates": rates, "bursts": bursts}
    return dict(statements.rows("read_tokens", buckets, using=using)) if rated else {}


def _running_by_scope(using: str) -> dict[str, Running]:
    found: dict[str, Running] = {}
    for queue, task, store_id, key, jobs, longest_id, since in statements.rows("running_longest", using=using):
        for scope in scopes_of(queue, task, store_id, key):
            running = Running(jobs, longest_id, store_id, since)
            found[scope] = running if scope not in found else found[scope].merged_with(running)
    return found


# For how long a job that could run has been due when its row may be locked: claims pass over it then.
PASSED_OVER: Final = timedelta(seconds=30)


def _passed_over(jobs: Sequence[Job], using: str) -> dict[int, list[WaitReason]]:
    """Return the sessions that hold rows of jobs that could run and have been due for long."""
    said = gettext("its row is held by %(session)s")
    holders = holders_of(Job, '"id"', [job.pk for job in jobs], using=using) if jobs else {}
    return {int(job_id): [WaitReason("locked", said % {"session": holder.name})] for job_id, holder in holders.items()}


def waiting_reasons(
    jobs: Iterable[Job], *, using: str, now: datetime, store_name: Callable[[StoreId], str] = str
) -> dict[int, list[WaitReason]]:
    """Return for each queued job why it does not run yet; no reason if it only waits for its turn.

    Six queries at most, for any number of jobs, plus those of ``store_name``. Role: operator, worker.
    """
    queued = [job for job in jobs if job.state == str(JobState.QUEUED)]
    if not queued:
        return {}
    conditions = start_conditions(queued, using=using, now=now, store_name=store_name)
    early = not_due(queued, using=using, now=now)
    reasons = {job.pk: early[job.pk] + conditions.reasons(job, now) for job in queued}
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
