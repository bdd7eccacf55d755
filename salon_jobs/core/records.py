"""Frozen values that queries return instead of model instances."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

# The key of a store, of the type of STORE_MODEL's primary key, which type checkers do not know, as with ``pk``.
StoreId: TypeAlias = Any
# The values that a caller may give for it.
GivenStore: TypeAlias = UUID | int | str
# How long the inbox remembers a message: twice the 14 days for which a broker may redeliver one.
INBOX_KEPT: Final = timedelta(days=30)


class JobState(StrEnum):
    """States of a job. A retry is ``queued`` again with a later ``run_at``."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobKeyMode(StrEnum):
    """Effect of enqueueing while a job with the same key waits."""

    REPLACE = "replace"
    PRESERVE_RUN_AT = "preserve_run_at"
    UNSAFE_DEDUPE = "unsafe_dedupe"


class EnqueueAction(StrEnum):
    """Effect of an enqueue on the table."""

    INSERTED = "inserted"
    REPLACED = "replaced"
    KEPT = "kept"
    SUPERSEDED_RUNNING = "superseded_running"


class KeptResult(NamedTuple):
    """The result of a handler, as JSON, the time for which it is kept, and the handler's duration."""

    value: str
    keep: timedelta
    ran_s: float


class ClaimedJob(NamedTuple):
    """One claimed row, in the column order of ``lease_due`` in ``db/sql/parts.sql``; instants are seconds since 1970.

    A tuple that makes datetimes on demand, since hundreds are read at a time. ``due_at`` is when the job became due on
    this process's monotonic clock, computed from the wait that the database's clock measured; infinite if unknown,
    which counts as no wait. ``trace`` is JSON: the headers with which the job continues the trace of its enqueuer. A
    job that is ``alone`` runs by itself, because a chunk with it failed.
    """

    id: int
    task: str
    store_id: StoreId | None
    payload: str  # empty if it was too large for the claim and the run has not begun
    queue: str
    priority: int
    run_at_s: float
    attempts: int
    max_attempts: int
    lease: int
    expired: bool
    tick_s: float | None
    created_at_s: float
    claim_group: int
    due_at: float = float("inf")
    trace: str | None = None
    public_id: UUID | None = None
    keep_result_s: float | None = None
    alone: bool = False

    @property
    def fence(self) -> int:
        """Number that distinguishes this run from any other: the random lease makes the exclusive or unique as well."""
        return self.id ^ self.lease

    @property
    def attempt(self) -> int:
        """The number of this run: 1 for the first."""
        return self.attempts + 1

    @property
    def keep_result(self) -> timedelta | None:
        """The time for which this job's result is kept; None: the task's default."""
        return None if self.keep_result_s is None else timedelta(seconds=self.keep_result_s)

    @property
    def run_at(self) -> datetime:
        """When the job was due, in UTC."""
        return datetime.fromtimestamp(self.run_at_s, UTC)

    @property
    def tick(self) -> datetime | None:
        """The cron tick from which the job originates, in UTC."""
        return None if self.tick_s is None else datetime.fromtimestamp(self.tick_s, UTC)

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued, in UTC."""
        return datetime.fromtimestamp(self.created_at_s, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a running job, as last reported: ``done`` of ``total``, which is None if unknown."""

    done: int
    total: int | None
    text: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """The error of a failed attempt.

    ``error_class`` is the full name of the exception's class, ``attempt`` the number of the run, from 1. ``worker_id``
    and ``started_at`` are None if they are not recorded. ``log`` has the last lines that the attempt logged.
    """

    attempt: int
    error_class: str
    code: str
    message: str
    traceback: str
    log: str
    occurred_at: datetime
    worker_id: int | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job at the time it was read.

    ``attempts`` counts the runs so far, including a current or successful one; ``worker_ids`` are their processes, in
    order, None if unknown. ``first_started_at`` and ``last_started_at`` are when its first and its latest run began (a
    current one: when it was claimed), ``run_at`` when it is, or was last, due. ``payload`` has the arguments without
    the store. With ``has_value``, ``value`` is the handler's result, kept for ``keep_result``. ``gone`` means that the
    job succeeded and its row is deleted: these are the fields that its result keeps. ``is_uncommitted``: the
    transaction that read it has itself enqueued or changed the job. ``progress`` is the last report of a running job,
    if there is one.
    """

    id: int
    public_id: UUID | None
    store_id: StoreId | None
    state: JobState
    task: str
    queue: str
    priority: int
    payload: dict[str, Any]
    run_at: datetime
    created_at: datetime
    first_started_at: datetime | None
    last_started_at: datetime | None
    finished_at: datetime | None
    reason: str
    attempts: int
    worker_ids: tuple[int | None, ...]
    value: Any
    has_value: bool
    errors: tuple[AttemptError, ...]
    gone: bool
    is_uncommitted: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class FanOutResult:
    """Counts of one fan-out: jobs added, stores that already had a waiting job with this key, paused stores.

    ``id`` identifies it for its progress. Two results with the same counts are equal.
    """

    inserted: int
    kept: int
    id: int = field(default=0, compare=False)
    paused: int = 0


@dataclass(frozen=True, slots=True)
class FanOutProgress:
    """Counts of the jobs that one fan-out added, by state; as text "97 of 100 done, 1 failed"."""

    total: int
    done: int
    running: int
    queued: int
    failed: int
    cancelled: int

    def __str__(self) -> str:
        """Omit zero counts and jobs that have not ended."""
        ended = ((self.failed, "failed"), (self.cancelled, "cancelled"))
        return ", ".join([f"{self.done} of {self.total} done", *(f"{n} {word}" for n, word in ended if n)])


# Number of partitions of the aggregates, which relays own. A power of two. Stored rows depend on it: never change it.
PARTITIONS: Final = 16


class MessageStatus(StrEnum):
    """States of a message."""

    PENDING = "pending"
    PUBLISHED = "published"
    FAILED = "failed"
    SKIPPED = "skipped"


IdT = TypeVar("IdT", int, str, int | str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class ActionResult(Generic[IdT]):
    """Result of an operator's action on one job, message, destination or aggregate (its type and ID).

    ``detail`` is why it was not changed, or the change that is still to come.
    """

    id: IdT
    changed: bool
    detail: str = ""
