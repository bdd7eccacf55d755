"""Follows the page on ordered jobs: its module is imported, its calls made, its jobs are run."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from salon_jobs.testing import drain_jobs
from tests.support import seen

PAGE = "docs/how-to/order.md"


@pytest.mark.usefixtures("database")
def test_the_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(calls[0], {})
    ids = [job_id for (job_id,) in seen("SELECT id FROM salon_jobs_job ORDER BY id")]
    shown = StringIO()
    call_command("salon_jobs", "show", str(ids[2]), stdout=shown)
    assert f"it is the turn of #{ids[0]} sync-customer: queued; 1 job waiting before this one" in shown.getvalue()
    assert "comes after other jobs with its concurrency key" in shown.getvalue()
    drain_jobs()
    ran = capsys.readouterr().out.splitlines()
    assert [line for line in ran if line.startswith("ada")] == ["ada 1", "ada 2", "ada 3"]
    assert "bob 1" in ran
