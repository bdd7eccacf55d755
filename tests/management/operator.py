"""What tests of the operator's commands and pages share."""

from __future__ import annotations

import json
from contextlib import suppress
from io import StringIO
from typing import Any

from django.core.management import call_command

from salon_jobs.core.metrics import BUCKETS, bucket_of
from tests.support import change, in_state, seen, selected


def run(*arguments: str) -> tuple[str, str]:
    """Run a subcommand of ``salon_jobs``; return what it wrote to standard output and standard error."""
    out, err = StringIO(), StringIO()
    call_command("salon_jobs", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def problems() -> list[dict[str, Any]]:
    """Return what ``status`` writes as JSON; its exit status says whether there is a problem."""
    out = StringIO()
    with suppress(SystemExit):
        call_command("salon_jobs", "status", "--json", stdout=out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["problems"]
    return found


def add(**columns: Any) -> int:
    """Add a job with these columns; return its ID."""
    state = columns.pop("state", "queued")
    row = {**in_state(f"'{state}'"), "task": "'ping'", **dict.fromkeys(columns, "%s")}
    values = [columns[name] for name in row if name in columns]
    [(job_id,)] = seen(f"INSERT INTO salon_jobs_job {selected(row)} RETURNING id", *values)
    return int(job_id)


def insert(table: str, **columns: Any) -> None:
    """Write a row of one of our tables."""
    values = ", ".join(["%s"] * len(columns))
    change(f"INSERT INTO salon_jobs_{table} ({', '.join(columns)}) VALUES ({values})", *columns.values())


def minute(task: str, minutes_ago: int, **counts: int) -> None:
    """Add a row of statistics: ten runs of 10 ms and one of 2 s, each due for a minute."""
    durations, waits = [0] * BUCKETS, [0] * BUCKETS
    durations[bucket_of(0.01)], durations[bucket_of(2)], waits[bucket_of(60)] = 10, 1, 11
    names = ("succeeded", "retried", "failed", "cancelled", "snoozed", "released", "rescued")
    change(
        "INSERT INTO salon_jobs_task_minute VALUES (now() - make_interval(mins => %s), %s, 'default',"
        " %s, %s, %s, %s, %s, %s, %s, 2.1, %s, 660, %s)",
        *(minutes_ago, task, *(counts.get(name, 0) for name in names), durations, waits),
    )
