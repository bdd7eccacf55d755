"""Frozen values that queries return instead of model instances."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

# Stands for "no store" where a lane needs one: an index compares it as it compares any other.
NO_STORE: Final = UUID(int=0)


class JobState(StrEnum):
    """Lists the states of a job. A retry is ``queued`` again with a later ``run_at``."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobKeyMode(StrEnum):
    """Says what enqueueing does while a job with the same key waits."""

    REPLACE = "replace"
    PRESERVE_RUN_AT = "preserve_run_at"
    UNSAFE_DEDUPE = "unsafe_dedupe"


class EnqueueResult(StrEnum):
    """Says what an enqueue did to the table."""

    INSERTED = "inserted"
    REPLACED = "replaced"
    KEPT = "kept"
    SUPERSEDED_RUNNING = "superseded_running"


class JobHandle(NamedTuple):
    """Names the job an enqueue made or met, and what happened to it."""

    id: int
    result: EnqueueResult


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """Carries one validated job to the store. ``run_at`` None means now, by the database's clock."""

    task: str
    store_id: UUID | None
    payload: str
    queue: str
    priority: int
    max_attempts: int
    run_at: datetime | None = None
    expires_at: datetime | None = None
    job_key: str | None = None
    job_key_mode: JobKeyMode = JobKeyMode.REPLACE
    tick: datetime | None = None
    concurrency_key: str | None = None
    trace: str | None = None


class JobContent(NamedTuple):
    """Carries what differs between the jobs of one ``enqueue_many``. A tuple: there can be millions."""

    store_id: UUID | None
    payload: str
    job_key: str | None
    concurrency_key: str | None
    trace: str | None = None


class ClaimedJob(NamedTuple):
    """Carries one claimed row, in the column order of ``sql/claim_due.sql``; instants as seconds since 1970.

    A tuple, and no datetimes until somebody asks: hundreds are read at a time. ``due_at`` is when it became due on this
    process's monotonic clock: how long it waited was told by the database's clock. ``trace`` is JSON: the headers by
    which it continues the trace of whoever enqueued it.
    """

    id: int
    task: str
    store_id: UUID | None
    payload: str
    queue: str
    priority: int
    run_at_s: float
    attempts: int
    max_attempts: int
    lease: int
    expired: bool
    tick_s: float | None
    created_at_s: float
    lane: int
    due_at: float = float("inf")
    trace: str | None = None

    @property
    def attempt(self) -> int:
        """Number this run: 1 for the first."""
        return self.attempts + 1

    @property
    def run_at(self) -> datetime:
        """Return when it was due, in UTC."""
        return datetime.fromtimestamp(self.run_at_s, UTC)

    @property
    def tick(self) -> datetime | None:
        """Return the cron tick it stems from, in UTC."""
        return None if self.tick_s is None else datetime.fromtimestamp(self.tick_s, UTC)

    @property
    def created_at(self) -> datetime:
        """Return when it was enqueued, in UTC."""
        return datetime.fromtimestamp(self.created_at_s, UTC)


@dataclass(frozen=True, slots=True)
class FanOutResult:
    """Counts what one fan-out did: jobs added, stores whose waiting job was met by its key, stores that are paused.

    ``id`` asks for its progress. Two that did the same are equal.
    """

    inserted: int
    kept: int
    id: int = field(default=0, compare=False)
    paused: int = 0


@dataclass(frozen=True, slots=True)
class FanOutProgress:
    """Counts the jobs that one fan-out added by what became of them; written "97 of 100 done, 1 failed"."""

    total: int
    done: int
    running: int
    queued: int
    failed: int
    cancelled: int

    def __str__(self) -> str:
        """Leave out what is zero, and what is still to come."""
        ended = ((self.failed, "failed"), (self.cancelled, "cancelled"))
        return ", ".join([f"{self.done} of {self.total} done", *(f"{n} {word}" for n, word in ended if n)])


# Aggregates are spread over so many; relays own them. Stored rows depend on it: it never changes. A power of two.
PARTITIONS: Final = 16


# Why messages are skipped that a list of the settings keeps from being sent.
TOPIC_DENIED: Final = "SNS.TOPIC_DENIED"
EVENT_SKIPPED: Final = "SNS.EVENT_SKIPPED"


class MessageStatus(StrEnum):
    """Lists what can have become of a message."""

    PENDING = "pending"
    PUBLISHED = "published"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class OperatedMessage:
    """Says what became of one message: changed, or why not."""

    id: int
    changed: bool
    detail: str = ""


class Result(Protocol):
    """Is what became of one row. ``detail`` says why not, or what is still to come."""

    @property
    def changed(self) -> bool:
        """Tell whether it was changed."""
        ...

    @property
    def detail(self) -> str:
        """Say more, if there is more to say."""
        ...
