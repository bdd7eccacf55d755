"""How tests of jobs read the job table, as the superuser."""

from __future__ import annotations

from typing import Any

from tests.support import seen


def jobs(columns: str, where: str = "true", *parameters: Any) -> list[tuple[Any, ...]]:
    """Return columns of the jobs, in the order of their ids."""
    return seen(f"SELECT {columns} FROM salon_jobs_job WHERE {where} ORDER BY id", *parameters)


def count(table: str = "salon_jobs_job") -> int:
    return int(seen(f"SELECT count(*) FROM {table}")[0][0])


def due() -> list[int]:
    """Return the ids of the jobs that a worker could claim now."""
    return [job_id for (job_id,) in jobs("id", "state = 'queued' AND run_at <= now()")]
