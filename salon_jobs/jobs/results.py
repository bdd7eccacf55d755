"""State, errors and result of a job, by its handle, number or public id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

import msgspec
from django.db import transaction

from salon_jobs.core.arguments import LAST_ID, as_uuid, is_id
from salon_jobs.core.as_json import encode
from salon_jobs.core.errors import JobDoesNotExist, NoResult, OptionInvalid, ResultInvalid
from salon_jobs.core.records import EnqueueAction, JobState, StoreId
from salon_jobs.core.text import shown
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.db.instants import to_project
from salon_jobs.jobs.answers import JobWait
from salon_jobs.jobs.progress import Progress
from salon_jobs.tenancy.active import current_store_id

if TYPE_CHECKING:
    from salon_jobs.jobs.run import JobRun

R = TypeVar("R", bound="JobRun")
_WITHOUT_RESULT: Final = {
    JobState.QUEUED: " yet: it is queued",
    JobState.RUNNING: " yet: it is running",
    JobState.FAILED: ": it failed",
    JobState.CANCELLED: ": it was cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """The error of one attempt that failed.

    ``error_class`` is the full name of the exception's class, ``attempt`` the number of the run, from 1. ``worker_id``
    and ``started_at`` are None if they are not recorded. ``log`` has the last lines that it logged.
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
    """One job as it was when it was read.

    ``attempts`` counts the runs so far, including a current or successful one; ``worker_ids`` are their processes, in
    order, None if unknown. ``first_started_at`` and ``last_started_at`` are when its first and its latest run began (a
    current one: when it was claimed), ``run_at`` when it is, or was last, due. ``payload`` has the arguments without
    the store. With ``has_value``, ``value`` is what the handler returned, kept for ``keep_result``. ``gone`` means that
    the job succeeded and its row is deleted: this is what its result keeps. ``is_uncommitted``: the transaction that
    read it has itself enqueued or changed the job. ``progress`` is what a running one last said, if it did.
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


class JobHandle(msgspec.Struct, frozen=True, gc=False):
    """The job that an enqueue added or found, and what it did.

    ``public_id``, by which its result is read, and ``created_at`` are set if the job was to have a public id.
    """

    id: int
    action: EnqueueAction
    public_id: UUID | None = None
    created_at: datetime | None = None

    def refresh(self) -> JobRecord:
        """Read the job as it is now. Raises JobDoesNotExist once it is gone and no result is kept."""
        record = None if self.public_id is None else load_result(self.public_id)
        return record or get_job(self.id)

    def status(self) -> JobState:
        """Return the job's state. Raises JobDoesNotExist once it is gone and no result is kept."""
        return self.refresh().state

    def result(self) -> Any:
        """Return what the handler returned, as JSON. Raises JobDoesNotExist, or NoResult with the reason."""
        record = self.refresh()
        if record.has_value:
            return record.value
        if record.state is JobState.SUCCEEDED:
            raise NoResult(f"job {self.id} succeeded, but its result is not kept: declare its task with keep_result")
        last = f"; last error: {record.errors[-1].error_class}: {record.errors[-1].message}" if record.errors else ""
        raise NoResult(f"job {self.id} has no result{_WITHOUT_RESULT[record.state]}{last}")

    def wait(self, timeout: timedelta | float) -> Any:
        """Wait for the end of the job; return what the handler returned if that is kept, else None.

        Raises JobFailed or JobCancelled with its error, WaitTimedOut after ``timeout`` (seconds, or a timedelta),
        WaitRefused inside the transaction that enqueued the job, and JobDoesNotExist if this role cannot see it.
        """
        return self._wait(timeout).run()

    async def await_result(self, timeout: timedelta | float) -> Any:
        """Wait like ``wait``, from a coroutine."""
        return await self._wait(timeout).arun()

    def _wait(self, timeout: timedelta | float) -> JobWait:
        return JobWait(self.id, self._read, timeout, by_public_id=self.public_id is not None)

    def _read(self) -> JobRecord | None:
        with suppress(JobDoesNotExist):
            return self.refresh()
        return None


class _WithId(Protocol):
    @property
    def id(self) -> int | str: ...


def get_job(job_id: int | str | UUID | _WithId, *, using: str | None = None) -> JobRecord:
    """Return the job with this number or public ID, or of a result of Django's tasks. Raises JobDoesNotExist.

    A job that succeeded is found as long as its result is kept (``keep_result``). With roles, the web role finds by
    their numbers only jobs of its current store. Raises OptionInvalid for what no job can have.
    """
    name = name_of(job_id)
    record = load_result(name, using=using) if isinstance(name, UUID) else _by_number(name, alias_of(using))
    if record is None:
        raise JobDoesNotExist(
            f"there is no job {name}: it never existed, belongs to another store, or ended and was deleted. A "
            "job that succeeded is found as long as its result is kept: declare its task with keep_result"
        )
    return record


def name_of(given: object) -> int | UUID:
    """Return the number or the public ID of a job, given as such, as text, or with a handle. Raises OptionInvalid."""
    found: object = getattr(given, "id", given)
    if isinstance(found, int) and is_id(found):
        return found
    if (public_id := as_uuid(found)) is not None:
        return public_id
    raise OptionInvalid(
        f"job_id must be the number of a job, from 0 to {LAST_ID}, or its public ID, not {shown(found)}"
    )


def _by_number(job_id: int, using: str) -> JobRecord | None:
    return _read("job_record", {"id": job_id, "public_id": None}, using)


def load_result(public_id: UUID, *, using: str | None = None) -> JobRecord | None:
    """Return the job with this public id, whatever its store, or None. Role: web, worker."""
    return _read("get_result", {"public_id": public_id}, alias_of(using))


# Characters of results in one statement, which is several times as large on its way. The server accepts 1 GB.
MOST_PER_STATEMENT: Final = 8_000_000
# Far below what jsonb can hold.
_LARGEST: Final = 10_000_000


def encode_result(task: str, value: object) -> str:
    """Return what a handler returned as JSON. Raises ResultInvalid."""
    try:
        encoded = encode(value)
        if len(encoded) > _LARGEST:
            raise ValueError(f"it has {len(encoded):,} bytes, and at most {_LARGEST:,} are kept")
        return encoded.decode()
    except Exception as error:  # the caller's own class may raise anything
        raise ResultInvalid(
            f"task {task!r} returned {type(value).__name__}, which cannot be kept as JSON: {error}. Return numbers, "
            "texts, lists, dicts, dates or dataclasses, or declare the task without keep_result"
        ) from error


def in_statements(runs: Sequence[R], most: int) -> Iterator[list[R]]:
    """Yield the runs that keep a result, in parts of at most ``most`` characters, or of a single one that is longer."""
    part, size = list[R](), 0
    for run in runs:
        if run.result is None:
            continue
        if part and size + len(run.result.value) > most:
            yield part
            part, size = [], 0
        part.append(run)
        size += len(run.result.value)
    if part:
        yield part


# In the order of ``job_record`` and of salon_jobs_get_result.
_COLUMNS: Final = [field.name for field in fields(JobRecord) if field.name != "has_value"]
_INSTANTS: Final = ("run_at", "created_at", "first_started_at", "last_started_at", "finished_at")


def as_current_store(using: str) -> AbstractContextManager[object]:
    """Return a block in which the rows of the current store are seen.

    Outside a transaction, a tenant_context with atomic=False has set no store yet, and they would look gone.
    """
    return nullcontext() if current_store_id() is None else transaction.atomic(using=using, savepoint=False)


def _read(statement: str, parameters: dict[str, Any], using: str) -> JobRecord | None:
    with as_current_store(using):
        rows = statements.rows(statement, parameters, using=using)
    if not rows:
        return None
    row: dict[str, Any] = dict(zip(_COLUMNS, rows[0], strict=True))
    value: str | None = row["value"]
    errors = msgspec.json.decode(row["errors"], type=list[AttemptError])
    progress = msgspec.json.decode(row["progress"], type=Progress | None)
    row |= {
        "state": JobState(row["state"]),
        "payload": msgspec.json.decode(row["payload"]),
        "worker_ids": tuple(row["worker_ids"]),
        "value": None if value is None else msgspec.json.decode(value),
        **{name: to_project(row[name]) for name in _INSTANTS},
        "errors": tuple(
            replace(each, occurred_at=to_project(each.occurred_at), started_at=to_project(each.started_at))
            for each in errors
        ),
        "progress": progress and replace(progress, updated_at=to_project(progress.updated_at)),
    }
    return JobRecord(**row, has_value=value is not None)
