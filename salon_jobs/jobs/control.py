"""Changes jobs by an operator's hand: retry, cancel, discard, change; a thousand at a time, each with its result."""

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
from salon_jobs.core.records import JobState
from salon_jobs.db import statements
from salon_jobs.jobs import enqueue
from salon_jobs.jobs.options import JobOptions
from salon_jobs.models import Job

BATCH = 1000
_BY_AN_OPERATOR: Final = "discarded: by an operator"
_ENDS_BY_CANCELLING = (JobState.QUEUED, JobState.RUNNING, JobState.FAILED)
_ASKED = "it runs; its process is asked to end it"


@dataclass(frozen=True, slots=True)
class Operated:
    """Says what became of one job: changed, or why not."""

    job_id: int
    changed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """Names a statement over a batch of ids, what else it takes, and what is said of a job that it leaves alone.

    ``takes_keys``: it also leaves those whose key another waiting job holds.
    """

    statement: str
    refused: str
    values: dict[str, Any]
    takes_keys: bool = False


def retry_jobs(job_ids: Iterable[int], *, at: datetime | None = None, using: str | None = None) -> list[Operated]:
    """Queue failed and cancelled jobs again, with one more attempt at least. Role: operator, worker, web.

    They are due ``at`` that instant, None: now. ``using`` None is the alias of the job tables. The web role retries its
    current store's jobs alone: call it inside ``tenant_context``. A job whose key a newer waiting job holds stays as it
    is and says which one holds it. Results come in the order of the ids. Each thousand is a transaction (a savepoint
    inside yours). Raises OptionInvalid for an ``at`` that is no aware datetime.
    """
    JobOptions(run_at=at)
    alias = using or conf.database
    retry = _Change("operator_retry", "only failed and cancelled jobs can be retried", {"at": at}, takes_keys=True)
    results = _change(retry, list(job_ids), alias)
    if any(result.changed for result in results):
        enqueue.after_commit(None, using=alias)
    return results


def discard_jobs(job_ids: Iterable[int], *, using: str | None = None) -> list[Operated]:
    """End queued and failed jobs as cancelled, ``discarded``: nothing will be done about them.

    Running ones are left alone; ``cancel_jobs`` asks those to end. Roles, ``using``, order and batches as
    ``retry_jobs``.
    """
    refused = "only queued and failed jobs can be discarded"
    discard = _Change("operator_cancel", refused, {"running": False, "reason": _BY_AN_OPERATOR})
    return _change(discard, list(job_ids), using or conf.database)


def change_jobs(
    job_ids: Iterable[int], *, priority: int | None = None, queue: str | None = None, using: str | None = None
) -> list[Operated]:
    """Give queued jobs another priority, queue or both. Roles, ``using``, order and batches as ``retry_jobs``.

    Raises OptionInvalid naming the field, and when neither is given.
    """
    if priority is None and queue is None:
        raise OptionInvalid("say what shall change: priority or queue")
    JobOptions(priority=0 if priority is None else priority, queue="default" if queue is None else queue)
    alias = using or conf.database
    change = _Change("operator_change", "only queued jobs can be changed", {"priority": priority, "queue": queue})
    results = _change(change, list(job_ids), alias)
    if any(result.changed for result in results):
        enqueue.after_commit(None, using=alias)
    return results


def cancel_jobs(job_ids: Iterable[int], *, using: str | None = None) -> list[Operated]:
    """Cancel jobs of any state but succeeded. Roles, ``using``, order and batches as ``retry_jobs``.

    The process of a running job is asked after your commit: nobody who finishes a job shall wait for your transaction.
    Its ``detail`` says so; the job can still succeed, when its handler ends by itself. A handler is told by
    ``current_job().cancelled()``.
    """
    alias = using or conf.database
    refused = "only queued, running and failed jobs can be cancelled"
    cancel = _Change("operator_cancel", refused, {"running": False, "reason": "cancelled"})
    results = _change(cancel, list(job_ids), alias)
    left = [result.job_id for result in results if not result.changed]
    running: set[int] = set()
    for start in range(0, len(left), BATCH):
        # One that ran when it was to be changed can wait again by now, or have failed.
        batch = Job.objects.using(alias).filter(pk__in=left[start : start + BATCH], state__in=_ENDS_BY_CANCELLING)
        ids = sorted(batch.values_list("pk", flat=True))
        running.update(ids)
        if ids:
            transaction.on_commit(partial(_ask_to_end, ids, alias), using=alias)
    return [Operated(each.job_id, True, _ASKED) if each.job_id in running else each for each in results]


def _ask_to_end(job_ids: Sequence[int], using: str) -> None:
    """Have running jobs ended, and cancel those that run no more but wait again or failed, in a short transaction."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            statements.load("operator_cancel"), {"ids": list(job_ids), "running": True, "reason": "cancelled"}
        )
        left = set(job_ids) - {row[0] for row in cursor.fetchall()}
        if left and conf.roles is not None:
            # Only the function may touch running jobs for the web role.
            cursor.execute("SELECT salon_jobs_cancel(%s::bigint[])", [sorted(left)])
        cursor.execute("SELECT pg_notify(%s, %s)", [enqueue.CHANNEL, enqueue.CANCEL])


def _change(change: _Change, job_ids: Sequence[int], using: str) -> list[Operated]:
    results: list[Operated] = []
    for start in range(0, len(job_ids), BATCH):
        batch = job_ids[start : start + BATCH]
        try:
            results += _at_once(change, batch, using)
        except IntegrityError as error:
            _require_key_collision(error)
            for job_id in batch:
                results += _one(change, job_id, using)
    return results


def _at_once(change: _Change, job_ids: Sequence[int], using: str) -> list[Operated]:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(statements.load(change.statement), {"ids": list(job_ids), **change.values})
        changed = {row[0] for row in cursor.fetchall()}
        left = [id_ for id_ in job_ids if id_ not in changed]
        held: dict[int, int] = {}
        if left and change.takes_keys:
            cursor.execute(statements.load("waiting_twin"), {"ids": left})
            held = dict(cursor.fetchall())
    why_not = {id_: _held_by(f"job {held[id_]}") if id_ in held else change.refused for id_ in left}
    return [Operated(id_, id_ in changed, why_not.get(id_, "")) for id_ in job_ids]


def _one(change: _Change, job_id: int, using: str) -> list[Operated]:
    try:
        return _at_once(change, [job_id], using)
    except IntegrityError as error:
        _require_key_collision(error)
    return [Operated(job_id, False, _held_by("another job"))]


def _held_by(holder: str) -> str:
    return f"{holder} waits under its key; cancel that one first"


def _require_key_collision(error: IntegrityError) -> None:
    """Raise again what is no unique violation: only a key's holder is something an operator can act on."""
    if not isinstance(error.__cause__, UniqueViolation):
        raise error
