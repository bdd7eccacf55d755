"""Calls of tasks as they are stored, and the results that Django's interface returns for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from salon_jobs.backend.framework import TaskError, TaskResult, TaskResultStatus
from salon_jobs.backend.tasks import ENQUEUED, AnyTask, changed, option
from salon_jobs.core.outcomes import CANCEL_CLASS, DISCARD_CLASS, DISCARDED
from salon_jobs.core.records import JobRecord, JobState
from salon_jobs.db.instants import to_project

if TYPE_CHECKING:
    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult

# A NUL written as JSON, after an even number of backslashes: jsonb refuses it.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
STATUS: Final = {
    JobState.QUEUED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
# Classes of errors that a run writes itself when it ends its job as cancelled.
_ENDS: Final = {DISCARD_CLASS, CANCEL_CLASS, "salon_jobs.core.errors.Expired"}


class BackendResult(AnyResult):
    """Result of one job. Unlike Django's, which holds lists, it can be a member of a set.

    The result that ``enqueue`` returns also has the number of its job.
    """

    __slots__ = ("job_id",)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """One call of a task in the form of its job's payload: the arguments and the options of its enqueue.

    ``changes`` are the options in which the enqueued task differs from the declared one. ``fits`` is False if the
    enqueued function did not take the arguments either, so that no release will.
    """

    backend: str
    args: list[Any]
    kwargs: dict[str, Any]
    changes: dict[str, Any]
    fits: bool = True

    def encode(self) -> str:
        """Return the payload as JSON. Raises ValueError for values that jsonb cannot hold."""
        payload: dict[str, Any] = {"args": self.args, "kwargs": self.kwargs, "backend": self.backend}
        if self.changes:
            payload["task"] = {name: _plain(value) for name, value in self.changes.items()}
        if not self.fits:
            payload["fits"] = False
        text = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        if "\\u0000" in text and _NUL.search(text):
            raise ValueError("a NUL character cannot be stored: PostgreSQL's jsonb refuses it")
        text.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
        return text

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> TaskCall | None:
        """Read a payload. Return None if this backend did not write it."""
        found: tuple[Any, ...] = tuple(map(payload.get, ("args", "kwargs", "backend")))
        if tuple(map(type, found)) != (list, dict, str):
            return None
        args, kwargs, backend = found
        changes: dict[str, Any] = {**payload.get("task", {})}
        if changes.get("run_after") is not None:
            changes["run_after"] = datetime.fromisoformat(changes["run_after"])
        if changes.get("keep_result") is not None:
            changes["keep_result"] = timedelta(seconds=changes["keep_result"])
        return cls(backend=backend, args=args, kwargs=kwargs, changes=changes, fits=payload.get("fits") is not False)

    def task(self, declared: AnyTask) -> AnyTask:
        """Return the task with the options it was enqueued with."""
        return changed(declared, {"backend": self.backend, **self.changes})


def changes_of(task: AnyTask, declared: AnyTask) -> dict[str, Any]:
    """Return a task's options that differ from the declared ones, among those that one enqueue can change."""
    if task is declared:
        return {}
    return {name: option(task, name) for name in ENQUEUED if option(task, name) != option(declared, name)}


def new_result(task: AnyTask, call: TaskCall, public_id: UUID | None, enqueued_at: datetime | None) -> BackendResult:
    """Return the result of a job that has not begun."""
    return BackendResult(
        task=task,
        id=str(public_id),
        status=TaskResultStatus.READY,
        enqueued_at=to_project(enqueued_at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        errors=[],
        worker_ids=[],
    )


def result_of(record: JobRecord, task: AnyTask, call: TaskCall) -> BackendResult:
    """Return the result of a job that was read."""
    result = new_result(task, call, record.public_id, record.created_at)
    update(
        result,
        status=STATUS[record.state],
        started_at=record.first_started_at,
        last_attempted_at=record.last_started_at,
        finished_at=record.finished_at,
        errors=_errors(record),
        worker_ids=_worker_ids(record),
        _return_value=record.value,
    )
    return result


def update(result: BackendResult, **values: Any) -> None:
    """Change a result in place, as Django's own backends do with their frozen ones."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _worker_ids(record: JobRecord) -> list[str]:
    """Return the worker of each attempt, or "" if it is not recorded.

    A process that died left an error but no attempt that counts, so the attempts are the last recorded ones.
    """
    known = record.worker_ids[-record.attempts :] if record.attempts else ()
    ids = ["" if each is None else str(each) for each in known]
    return ids + [""] * (record.attempts - len(ids))


def _errors(record: JobRecord) -> Sequence[TaskError]:
    errors = [TaskError(exception_class_path=each.error_class, traceback=each.traceback) for each in record.errors]
    if record.state is JobState.CANCELLED and not _run_ended(record):
        # A job that did not run has no exception of its own.
        path = DISCARD_CLASS if record.reason.startswith(DISCARDED) else CANCEL_CLASS
        errors.append(TaskError(exception_class_path=path, traceback=record.reason))
    return errors


def _run_ended(record: JobRecord) -> bool:
    """Return whether a run ended this cancelled job, with an error of its own. Earlier ones are older than the end."""
    if not record.errors or record.finished_at is None:
        return False
    last = record.errors[-1]
    return last.error_class in _ENDS and last.occurred_at >= record.finished_at


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value
