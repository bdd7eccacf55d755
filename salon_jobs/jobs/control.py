"""Operators' changes to jobs: retry, cancel, discard, change; in batches of a thousand, with a result for each job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import IntegrityError, connections, transaction
from psycopg.errors import UniqueViolation

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.db import statements
from salon_jobs.jobs import enqueue
from salon_jobs.jobs.options import JobOptions
from salon_jobs.models import Job

BATCH = 1000
_BY_AN_OPERATOR: Final = "discarded: by an operator"
_ENDS_BY_CANCELLING = (JobState.QUEUED, JobState.RUNNING, JobState.FAILED)
_ASKED = "still running; its worker was asked to end it"


@dataclass(frozen=True, slots=True)
class _Change:
    """Statement for a batch of ids, its other parameters, and the reason given for a job that it does not change.

    ``takes_keys``: it also skips jobs whose key another waiting job holds.
    """

    statement: str
    refused: str
    values: dict[str, Any]
    takes_keys: bool = False


def retry_jobs(ids: Iterable[int], *, at: datetime | None = None, using: str | None = None) -> list[ActionResult[int]]:
    """Requeue failed and cancelled jobs, allowing at least one more attempt. Role: operator, worker, web.

    They become due at ``at``, by default now. ``using`` defaults to the alias of the job tables. The web role can only
    retry jobs of its current store: call it inside ``tenant_context``. A job whose key a newer waiting job holds is
    left unchanged, and its result names that job. Results are in the order of the ids. Each thousand is a transaction
    (a savepoint inside yours). Raises OptionInvalid if ``at`` is not an aware datetime.
    """
    JobOptions(run_at=at)
    alias = using or conf.database
    retry = _Change("operator_retry", "only failed and cancelled jobs can be retried", {"at": at}, takes_keys=True)
    results = _change(retry, list(ids), alias)
    if any(result.changed for result in results):
        enqueue.after_commit(None, using=alias)
    return results


def discard_jobs(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Cancel queued and failed jobs with the reason ``discarded``: they will not run again.

    Running jobs are left alone; ``cancel_jobs`` asks those to end. Roles, ``using``, order and batches as in
    ``retry_jobs``.
    """
    refused = "only queued and failed jobs can be discarded"
    discard = _Change("operator_cancel", refused, {"running": False, "reason": _BY_AN_OPERATOR})
    return _change(discard, list(ids), using or conf.database)


def change_jobs(
    ids: Iterable[int], *, priority: int | None = None, queue: str | None = None, using: str | None = None
) -> list[ActionResult[int]]:
    """Change the priority or queue, or both, of queued jobs. Roles, ``using``, order and batches as in ``retry_jobs``.

    Raises OptionInvalid naming the field, and when neither is given.
    """
    if priority is None and queue is None:
        raise OptionInvalid("say what shall change: priority or queue")
    JobOptions(priority=0 if priority is None else priority, queue="default" if queue is None else queue)
    alias = using or conf.database
    change = _Change("operator_change", "only queued jobs can be changed", {"priority": priority, "queue": queue})
    results = _change(change, list(ids), alias)
    if any(result.changed for result in results):
        enqueue.after_commit(None, using=alias)
    return results


def cancel_jobs(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Cancel jobs in any state but succeeded. Roles, ``using``, order and batches as in ``retry_jobs``.

    A running job's process is asked after your commit, so that finishing a job never waits for your transaction. Its
    ``detail`` says so; the job can still succeed if its handler ends by itself. The handler sees the request in
    ``current_job().cancelled()``.
    """
    alias = using or conf.database
    refused = "only queued, running and failed jobs can be cancelled"
    cancel = _Change("operator_cancel", refused, {"running": False, "reason": "cancelled"})
    results = _change(cancel, list(ids), alias)
    left = [result.id for result in results if not result.changed]
    running: set[int] = set()
    for start in range(0, len(left), BATCH):
        # A job that was running a moment ago can be queued again or failed by now.
        batch = Job.objects.using(alias).filter(pk__in=left[start : start + BATCH], state__in=_ENDS_BY_CANCELLING)
        interruptible = sorted(batch.values_list("pk", flat=True))
        running.update(interruptible)
        if interruptible:
            transaction.on_commit(partial(_ask_to_end, interruptible, alias), using=alias)
    return [ActionResult(each.id, True, _ASKED) if each.id in running else each for each in results]


def _ask_to_end(job_ids: Sequence[int], using: str) -> None:
    """Request cancellation of running jobs, and cancel those queued again or failed by now, in a short transaction."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            statements.load("operator_cancel"), {"ids": list(job_ids), "running": True, "reason": "cancelled"}
        )
        left = set(job_ids) - {row[0] for row in cursor.fetchall()}
        if left and conf.roles is not None:
            # The web role may change running jobs only through the function.
            cursor.execute("SELECT salon_jobs_cancel(%s::bigint[])", [sorted(left)])
        cursor.execute("SELECT pg_notify(%s, %s)", [enqueue.CHANNEL, enqueue.CANCEL])


def _change(change: _Change, job_ids: Sequence[int], using: str) -> list[ActionResult[int]]:
    results: list[ActionResult[int]] = []
    for start in range(0, len(job_ids), BATCH):
        batch = job_ids[start : start + BATCH]
        try:
            results += _at_once(change, batch, using)
        except IntegrityError as error:
            _require_key_collision(error)
            for job_id in batch:
                results += _one(change, job_id, using)
    return results


def _at_once(change: _Change, job_ids: Sequence[int], using: str) -> list[ActionResult[int]]:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(statements.load(change.statement), {"ids": list(job_ids), **change.values})
        changed = {row[0] for row in cursor.fetchall()}
        left = [id_ for id_ in job_ids if id_ not in changed]
        held: dict[int, int] = {}
        if left and change.takes_keys:
            cursor.execute(statements.load("waiting_twin"), {"ids": left})
            held = dict(cursor.fetchall())
    why_not = {id_: _held_by(f"job {held[id_]}") if id_ in held else change.refused for id_ in left}
    return [ActionResult(id_, id_ in changed, why_not.get(id_, "")) for id_ in job_ids]


def _one(change: _Change, job_id: int, using: str) -> list[ActionResult[int]]:
    try:
        return _at_once(change, [job_id], using)
    except IntegrityError as error:
        _require_key_collision(error)
    return [ActionResult(job_id, False, _held_by("another job"))]


def _held_by(holder: str) -> str:
    return f"{holder} waits under its key; cancel that one first"


def _require_key_collision(error: IntegrityError) -> None:
    """Re-raise anything but a unique violation: an operator can act only on a key that another job holds."""
    if not isinstance(error.__cause__, UniqueViolation):
        raise error
