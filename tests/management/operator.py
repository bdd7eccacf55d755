"""What tests of the operator's commands and pages share."""

from __future__ import annotations

from io import StringIO
from typing import Any

from django.core.management import call_command

from tests.support import seen


def run(*arguments: str) -> tuple[str, str]:
    """Run a subcommand of ``salon_jobs``; return what it wrote to standard output and standard error."""
    out, err = StringIO(), StringIO()
    call_command("salon_jobs", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def add(**columns: Any) -> int:
    """Add a job with these columns; return its ID."""
    values = {"task": "ping", **columns}
    names, marks = ", ".join(values), ", ".join("%s" for _ in values)
    [(job_id,)] = seen(f"INSERT INTO salon_jobs_job ({names}) VALUES ({marks}) RETURNING id", *values.values())
    return int(job_id)
