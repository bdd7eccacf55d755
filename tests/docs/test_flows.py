"""Follows the page on flows: its module is imported, its calls made, its jobs are run."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from salon_jobs import flow
from salon_jobs.testing import drain_jobs
from tests.support import seen

PAGE = "docs/how-to/flows.md"


@pytest.mark.usefixtures("database")
def test_the_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, more = calls
    exec(first, {})
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job WHERE task = 'charge-order'")
    shown = StringIO()
    call_command("salon_jobs", "show", str(job_id), stdout=shown)
    its_flow = re.sub("#[0-9]+", "#", shown.getvalue().partition("its flow\n")[2]).rstrip().splitlines()
    assert its_flow == [
        "  fetch-order #: queued",
        "> charge-order #: held, after fetch-order #",
        "  ship-order #: held, after charge-order #",
        "  report-order #: held, after fetch-order #, charge-order #, if one of them fails",
    ]
    assert [job.task for job in drain_jobs()] == ["fetch-order", "charge-order", "ship-order"]
    names: dict[str, Any] = {}
    exec(more, names)
    with flow("import") as order:
        order.add(names["split"].call(2))
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["charged 700", "part 0", "part 1", "joined"]
