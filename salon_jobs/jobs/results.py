"""State, errors and result of a job, by its handle, number or public id."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
from django.db import transaction

from salon_jobs.core.arguments import LAST_ID, as_uuid, is_id
from salon_jobs.core.errors import JobDoesNotExist, NoResult, OptionInvalid
from salon_jobs.core.records import AttemptError, EnqueueAction, JobRecord, JobState, Progress
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.db.instants import to_project
from salon_jobs.jobs.result_waits import JobWait
from salon_jobs.tenancy.active import current_store_id

_WITHOUT_RESULT: Final = {
    JobState.QUEUED: " yet: it is queued",
    JobState.RUNNING: " yet: it is running",
    JobState.FAILED: ": it failed",
    JobState.CANCELLED: ": it was cancelled",
}


class JobHandle(msgspec.Struct, frozen=True, gc=False):
    """The job that an enqueue added or found, and the action taken.

    ``public_id``, which identifies its result, and ``created_at`` are set if a public id was requested.
    """

    id: int
    action: EnqueueAction
    public_id: UUID | None = None
    created_at: datetime | None = None

    def refresh(self) -> JobRecord:
        """Read the current job. Raises JobDoesNotExist once it is gone and no result is kept."""
        record = None if self.public_id is None else load_result(self.public_id)
        return record or get_job(self.id)

    def status(self) -> JobState:
        """Return the job's state. Raises JobDoesNotExist once it is gone and no result is kept."""
        return self.refresh().state

    def result(self) -> Any:
        """Return the handler's result, as JSON. Raises JobDoesNotExist, or NoResult with the reason."""
        record = self.refresh()
        if record.has_value:
            return record.value
        if record.state is JobState.SUCCEEDED:
            raise NoResult(f"job {self.id} succeeded, but its result is not kept: declare its task with keep_result")
        last = f"; last error: {record.errors[-1].error_class}: {record.errors[-1].message}" if record.errors else ""
        raise NoResult(f"job {self.id} has no result{_WITHOUT_RESULT[record.state]}{last}")

    def wait(self, timeout: timedelta | float) -> Any:
        """Wait for the end of the job; return the handler's result if that is kept, else None.

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


class WithId(Protocol):
    """A handle of ours, or a result of Django's tasks."""

    @property
    def id(self) -> int | str: ...


def get_job(job_id: int | str | UUID | WithId, *, using: str | None = None) -> JobRecord:
    """Return the job with this number or public ID, or of a result of Django's tasks. Raises JobDoesNotExist.

    A job that succeeded is found as long as its result is kept (``keep_result``). With roles, the web role finds by
    number only jobs of its current store. Raises OptionInvalid for a value that identifies no job.
    """
    name = name_of(job_id)
    if isinstance(name, UUID):
        record = load_result(name, using=using)
    else:
        record = _read("job_record", {"id": name, "public_id": None}, alias_of(using))
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
        f"job_id must be the number of a job, from 0 to {LAST_ID}, or its public ID, not {short_repr(found)}"
    )


def load_result(public_id: UUID, *, using: str | None = None) -> JobRecord | None:
    """Return the job with this public id, of any store, or None. Role: web, worker."""
    return _read("get_result", {"public_id": public_id}, alias_of(using))


# In the order of ``job_record`` and of salon_jobs_get_result.
_COLUMNS: Final = [field.name for field in fields(JobRecord) if field.name != "has_value"]
_INSTANTS: Final = ("run_at", "created_at", "first_started_at", "last_started_at", "finished_at")


def as_current_store(using: str) -> AbstractContextManager[object]:
    """Return a block in which the rows of the current store are visible.

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
