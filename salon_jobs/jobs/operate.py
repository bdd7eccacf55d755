"""Changes jobs by an operator's hand: retry and cancel, one row at a time, each with its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import IntegrityError, connections, transaction

from salon_jobs import sql
from salon_jobs.jobs import wake


@dataclass(frozen=True, slots=True)
class Operated:
    """Says what became of one job: changed, or why not."""

    job_id: int
    changed: bool
    detail: str = ""


def retry(job_ids: Iterable[int], *, using: str) -> list[Operated]:
    """Queue failed and cancelled jobs again, due now, with one more attempt at least. Role: operator, worker, web.

    A job whose key a newer waiting job holds stays as it is and says which one holds it. Each job is a savepoint.
    """
    results = [_one("retry", job_id, "only failed and cancelled jobs can be retried", using) for job_id in job_ids]
    if any(result.changed for result in results):
        wake.after_commit(None, using=using)
    return results


def cancel(job_ids: Iterable[int], *, using: str) -> list[Operated]:
    """Cancel queued and failed jobs; a running one is left alone. Role: operator, worker, web."""
    return [_one("cancel", job_id, "only queued and failed jobs can be cancelled", using) for job_id in job_ids]


def _one(statement: str, job_id: int, refusal: str, using: str) -> Operated:
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(sql.load(f"operator_{statement}"), {"id": job_id})
            return Operated(job_id, True) if cursor.rowcount else Operated(job_id, False, refusal)
    except IntegrityError:
        with connections[using].cursor() as cursor:
            cursor.execute(sql.load("waiting_twin"), {"id": job_id})
            row = cursor.fetchone()
        holder = "another job" if row is None else f"job {row[0]}"
        return Operated(job_id, False, f"{holder} waits under its key; cancel that one first")
