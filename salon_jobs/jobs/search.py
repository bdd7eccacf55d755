"""Job search for operators: by criteria, by kind of failure, and the retries still ahead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import OperationalError, connections, transaction
from django.db.models import Case, Func, IntegerField, Q, QuerySet, TextField, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce
from django.db.models.lookups import Exact, IContains, LessThanOrEqual
from psycopg.errors import QueryCanceled

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.text import visible
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.models import Job, JobError, JobProgress
from salon_jobs.models.fields import NoStore, created

ENDED: Final = Q(state__in=[JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED])
_LIVE: Final = [JobState.QUEUED, JobState.RUNNING]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCriteria:
    """Criteria, all of which a job must meet; None means any. ``since`` and ``until`` are bounds of its enqueueing."""

    states: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    store_id: StoreId | None = None
    job_key: str | None = None
    error_class: str | None = None
    fingerprint: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def find_jobs(criteria: JobCriteria, *, using: str) -> QuerySet[Job]:
    """Return the matching jobs, newest first. Error class and fingerprint match only failed jobs."""
    jobs = Job.objects.using(using).order_by("-pk")
    if criteria.states:
        jobs = jobs.filter(state__in=criteria.states)
    for name in ("task", "queue"):
        if (value := getattr(criteria, name)) is not None:
            jobs = jobs.filter(in_every_state(Q(**{name: value})))
    if criteria.store_id is not None:
        jobs = jobs.filter(store_id=criteria.store_id)
    if criteria.job_key is not None:
        jobs = jobs.filter(with_key(criteria.job_key))
    for name in ("error_class", "fingerprint"):
        if (value := getattr(criteria, name)) is not None:
            jobs = jobs.filter(state=JobState.FAILED, **{name: value})
    return created(jobs, since=criteria.since, until=criteria.until)


def in_every_state(condition: Q) -> Q:
    """Write a condition out for queued, running and ended jobs, so that each part can use its own partial index.

    An index over all states would be written by every enqueue and every claim, for a page that few people open.
    """
    return (Q(state=JobState.QUEUED) & condition) | (Q(state=JobState.RUNNING) & condition) | (ENDED & condition)


def of_no_store() -> Q:
    """Match the jobs of no store: queued ones by the index of claim groups, ended ones by an index of their own."""
    as_indexed = Exact(Coalesce("store_id", NoStore()), NoStore())
    none = Q(store_id=None)
    return (Q(state=JobState.QUEUED) & Q(as_indexed) & none) | (Q(state=JobState.RUNNING) & none) | (ENDED & none)


def with_key(job_key: str) -> Q:
    """Match a key, so that the indexes of live and of ended jobs can be used."""
    return Q(state__in=_LIVE, job_key=job_key) | (ENDED & Q(job_key=job_key))


# How many of the newest jobs, and of the newest errors, are searched for a text, since no index has texts; and how many
# of the server's matches are read at most, since a match in a hidden value does not count.
SEARCHED: Final = 10_000
_READ: Final = 500
# The largest payload that is searched or listed, in bytes as stored, compressed or not: that size is known without
# reading it. A payload of megabytes takes the server as long as thousands of others.
LARGEST_READ: Final = 8_192
# How long each query of a search may take.
LONGEST_SEARCH: Final = timedelta(seconds=1)


def _stored_size() -> Func:
    return Func("payload", function="pg_column_size", output_field=IntegerField())


class Search(NamedTuple):
    """Numbers of the jobs found, and whether the search was completed within ``LONGEST_SEARCH``."""

    ids: list[int]
    ended: bool


def ids_with_text(term: str, *, using: str) -> Search:
    """Search the newest jobs by argument, as ``name=value``, or by part of a text (case-insensitive).

    Searches payloads of up to ``LARGEST_READ``, without the values that ``REDACT`` hides on every page, and the
    messages of the newest errors. Role: operator, worker, web.
    """
    part, (name, equals, value) = json.dumps(term, ensure_ascii=False)[1:-1], term.partition("=")
    seeks_argument = bool(equals) and name.isidentifier()
    jobs, errors = Job.objects.using(using).order_by("-pk"), JobError.objects.using(using).order_by("-pk")
    wanted = Q(IContains(Cast("payload", TextField()), part))
    if seeks_argument:
        wanted |= Q(Exact(KeyTextTransform(name, "payload"), value)) | _of_djangos(name, value)
    small = Q(LessThanOrEqual(_stored_size(), LARGEST_READ))
    found: list[int] = []
    try:
        with _ending_within(LONGEST_SEARCH, using=using):
            found += _newest(errors).filter(message__icontains=term).values_list("job_id", flat=True)[:_READ]
            rows = _newest(jobs).filter(small & wanted).values_list("pk", "task", "payload")[:_READ]
            for job_id, task, payload in rows:
                shown = registry.visible(task, payload)
                arguments = registry.visible_arguments(task, shown) if seeks_argument else {}
                written = json.dumps(shown, ensure_ascii=False)
                if _as_text(arguments.get(name)) == value or part.casefold() in written.casefold():
                    found.append(job_id)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return Search(found, ended=False)
    return Search(found, ended=True)


def _of_djangos(name: str, value: str) -> Q:
    """Match Django's tasks with such an argument, by name or at any position: only the task knows their names."""
    by_name = Q(Exact(KeyTextTransform(name, KeyTransform("kwargs", "payload")), value))
    by_position = Q(payload__contains={"args": [value]})
    with suppress(ValueError, RecursionError):
        typed = json.loads(value)
        json.dumps(typed, allow_nan=False)  # such as 1e999, which jsonb refuses, like some escapes
        if "\\u" not in value:
            by_position |= Q(payload__contains={"args": [typed]})
    return by_name | by_position


def _as_text(value: Any) -> str | None:
    """Return a value in the form of ``name=value`` and of PostgreSQL's ``->>``."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def _ending_within(longest: timedelta, *, using: str) -> Generator[None]:
    """Have the server end longer queries until the end of the block, which changes nothing."""
    with transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {round(longest.total_seconds() * 1000)}")
        yield
        transaction.set_rollback(True, using=using)  # restores the limit, also in a transaction that continues


# The length of one job's arguments in a list.
_LONGEST_LISTED: Final = 120


def listed_arguments(jobs: QuerySet[Job]) -> dict[int, str | None]:
    """Return the shortened arguments of each of these jobs, by their numbers; None for a payload that is not read.

    The server sends none larger than ``LARGEST_READ``, which is not for lists.
    """
    small = Case(When(Q(LessThanOrEqual(_stored_size(), LARGEST_READ)), then="payload"))
    listed: dict[int, str | None] = {}
    for job_id, task, payload in jobs.order_by().annotate(small=small).values_list("pk", "task", "small"):
        arguments = registry.visible_arguments(task, registry.visible(task, payload)).items()
        shown = ", ".join(f"{visible(name)}={_short(value)}" for name, value in arguments)
        listed[job_id] = None if payload is None else shown
    return listed


def _short(value: Any) -> str:
    """Return a value of JSON as text, without the end of a long one."""
    written = visible(json.dumps(value, ensure_ascii=False))
    return written if len(written) <= _LONGEST_LISTED else f"{written[:_LONGEST_LISTED]}…"


def _newest(rows: QuerySet[Any]) -> QuerySet[Any]:
    oldest = rows.values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED].first()
    return rows if oldest is None else rows.filter(pk__gte=oldest)


# Most retries to show; a job can have 32,767.
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """An attempt, and the earliest and latest time it becomes due, if every attempt before it fails at once."""

    attempt: int
    earliest: datetime
    latest: datetime


def retries_ahead(job: Job, now: datetime) -> list[NextAttempt]:
    """Return the next attempts of a queued or running job, at most ``SHOWN``; none once it has ended or is to end.

    The next attempt of a queued job is due exactly at its ``run_at``. Run times and waits for a free worker are not
    included. Uses the backoff of the task as this process declares it, or of the settings for an unknown task.
    """
    if job.state not in (JobState.QUEUED, JobState.RUNNING) or job.cancel_requested_at is not None:
        return []
    backoff = registry.get_declaration(job.task).backoff if job.task in registry.task_names() else conf.backoff
    earliest = latest = job.run_at if job.state == JobState.QUEUED else now
    ahead = [NextAttempt(job.attempts + 1, earliest, latest)] if job.state == JobState.QUEUED else []
    for failed in range(job.attempts + 1, min(job.max_attempts, job.attempts + SHOWN + 1)):
        shortest, longest = backoff.bounds(failed)
        # A job that is already due runs now, whenever it became due.
        earliest, latest = max(earliest, now) + shortest, max(latest, now) + longest
        ahead.append(NextAttempt(failed + 1, earliest, latest))
    return ahead[:SHOWN]


# A page reads at most this many kinds, and counts at most this many jobs.
MOST_KINDS: Final = 200
COUNTED: Final = 1000
# The most stores that a group names.
_STORES: Final = 20


@dataclass(frozen=True, slots=True)
class FailureKind:
    """Failed jobs with the same cause, and when the first and the last of them failed.

    ``jobs`` counts up to ``COUNTED``; if there are more, the times are those of the newest jobs and the oldest one.
    ``message`` is that of the newest job.
    """

    fingerprint: int
    task: str
    error_class: str
    first_at: datetime | None
    last_at: datetime | None
    newest_id: int
    jobs: int
    message: str


def failure_kinds(*, using: str) -> list[FailureKind]:
    """Return up to ``MOST_KINDS`` kinds of failure, latest first. Role: operator, worker, web."""
    rows = statements.rows("failure_kinds", {"kinds": MOST_KINDS, "most": COUNTED + 1}, using=using)
    kinds = [FailureKind(*row) for row in rows]
    kinds.sort(key=lambda kind: (kind.last_at.timestamp() if kind.last_at else 0, kind.newest_id), reverse=True)
    return kinds


# How many of the newest errors are read for the jobs that are tried again, which no index has.
_ERRORS_READ: Final = 10_000


def retrying(*, using: str) -> Q:
    """Match the queued jobs that have failed, among those of the newest 10,000 errors. Role: operator, worker, web."""
    newest = JobError.objects.using(using).order_by("-pk").values("job_id")[:_ERRORS_READ]
    return Q(state=JobState.QUEUED, attempts__gt=0, pk__in=newest)


def retrying_kinds(*, using: str) -> list[FailureKind]:
    """Return the kinds of errors of ``retrying`` jobs, by task and class, the most jobs first, up to ``MOST_KINDS``.

    They have no fingerprint, which failed jobs get. Role: operator, worker, web.
    """
    values = {"kinds": MOST_KINDS, "most": _ERRORS_READ}
    return [FailureKind(0, *row) for row in statements.rows("retrying_kinds", values, using=using)]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed jobs with the same cause: times of the newest ``COUNTED`` failures, newest first, and their stores.

    ``more`` tells whether there are others; ``first_at`` is when the oldest of all failed.
    """

    newest: Job
    times: list[datetime]
    stores: list[tuple[StoreId, int]]
    more: bool
    first_at: datetime | None


def failure_group(jobs: QuerySet[Job], fingerprint: int) -> FailureGroup | None:
    """Return the group with this fingerprint among these jobs, by its index; None if there is none (any more)."""
    alike = jobs.filter(state=JobState.FAILED, fingerprint=fingerprint)
    newest = alike.order_by("-fingerprint", "-pk").first()
    oldest = alike.order_by("fingerprint", "pk").first()
    if newest is None or oldest is None:
        return None
    rows = list(alike.order_by("-fingerprint", "-pk").values_list("finished_at", "store_id")[: COUNTED + 1])
    times = sorted((at for at, _ in rows[:COUNTED] if at is not None), reverse=True)
    stores = Counter(store for _, store in rows[:COUNTED] if store is not None).most_common(_STORES)
    first_at = min((at for at in (*times[-1:], oldest.finished_at) if at is not None), default=None)
    return FailureGroup(newest, times, stores, len(rows) > COUNTED, first_at)


def error_classes(*, using: str) -> list[str]:
    """Return up to 50 error classes of failed jobs. Roles as in ``failure_kinds``."""
    return [name for (name,) in statements.rows("error_classes", using=using)]


def progress_of(jobs: Iterable[Job], *, using: str) -> dict[int, str]:
    """Return the reported progress of the running ones of these jobs, by their numbers."""
    leases = {job.pk: job.lease for job in jobs if job.state == JobState.RUNNING}
    rows = JobProgress.objects.using(using).filter(job_id__in=leases) if leases else ()
    return {row.job_id: str(row) for row in rows if row.lease == leases[row.job_id]}
