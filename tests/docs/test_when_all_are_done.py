"""Follows the page on what runs when all jobs are done: its module is imported, its call made, its jobs are run."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from salon_jobs.testing import drain_jobs
from tests.support import seen

PAGE = "docs/how-to/when-all-are-done.md"


@pytest.mark.usefixtures("database")
def test_the_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    [call] = calls
    exec(call, {})
    [(job_id,)] = seen("SELECT min(id) FROM salon_jobs_job")
    shown = StringIO()
    call_command("salon_jobs", "show", str(job_id), "--json", stdout=shown)
    assert json.loads(shown.getvalue())["follow_up"] == {"task": "summarize-import", "remaining": 3}
    shown = StringIO()
    call_command("salon_jobs", "show", str(job_id), stdout=shown)
    [line] = [line for line in shown.getvalue().splitlines() if line.split()[:1] == ["then"]]
    assert line.split()[1:] == ["summarize-import,", "after", "3", "more", "jobs"]
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["part 0", "part 1", "part 2", "all parts of 2026-05-05"]
