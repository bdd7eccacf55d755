"""Changes jobs by an operator's hand: retry and cancel, a thousand at a time, each with its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import IntegrityError, connections, transaction
from psycopg.errors import UniqueViolation

from salon_jobs import sql
from salon_jobs.jobs import wake

BATCH = 1000


@dataclass(frozen=True, slots=True)
class Operated:
    """Says what became of one job: changed, or why not."""

    job_id: int
    changed: bool
    detail: str = ""


def retry(job_ids: Iterable[int], *, using: str) -> list[Operated]:
    """Queue failed and cancelled jobs again, due now, with one more attempt at least. Role: operator, worker, web.

    A job whose key a newer waiting job holds stays as it is and says which one holds it. Results come in the order of
    the ids. Each thousand is a transaction (a savepoint inside yours).
    """
    results = _change("retry", list(job_ids), "only failed and cancelled jobs can be retried", using)
    if any(result.changed for result in results):
        wake.after_commit(None, using=using)
    return results


def cancel(job_ids: Iterable[int], *, using: str) -> list[Operated]:
    """Cancel queued and failed jobs; a running one is left alone. Role: operator, worker, web. Batches as ``retry``."""
    return _change("cancel", list(job_ids), "only queued and failed jobs can be cancelled", using)


def _change(statement: str, job_ids: Sequence[int], refusal: str, using: str) -> list[Operated]:
    results: list[Operated] = []
    for start in range(0, len(job_ids), BATCH):
        batch = job_ids[start : start + BATCH]
        try:
            results += _at_once(statement, batch, refusal, using)
        except IntegrityError as error:
            _require_key_collision(error)
            for job_id in batch:
                results += _one(statement, job_id, refusal, using)
    return results


def _at_once(statement: str, job_ids: Sequence[int], refusal: str, using: str) -> list[Operated]:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(sql.load(f"operator_{statement}"), {"ids": list(job_ids)})
        changed = {row[0] for row in cursor.fetchall()}
    return [Operated(id_, True) if id_ in changed else Operated(id_, False, refusal) for id_ in job_ids]


def _one(statement: str, job_id: int, refusal: str, using: str) -> list[Operated]:
    try:
        return _at_once(statement, [job_id], refusal, using)
    except IntegrityError as error:
        _require_key_collision(error)
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load("waiting_twin"), {"id": job_id})
        row = cursor.fetchone()
    holder = "another job" if row is None else f"job {row[0]}"
    return [Operated(job_id, False, f"{holder} waits under its key; cancel that one first")]


def _require_key_collision(error: IntegrityError) -> None:
    """Raise again what is no unique violation: only a key's holder is something an operator can act on."""
    if not isinstance(error.__cause__, UniqueViolation):
        raise error
