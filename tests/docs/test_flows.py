"""Follows the page on flows: its module is imported, its calls made, its jobs are run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from salon_jobs import flow
from salon_jobs.jobs import registry
from salon_jobs.testing import drain_jobs
from tests.docs.markdown import blocks, read
from tests.support import seen

PAGE = "docs/how-to/flows.md"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Write the page's module, and return the code of its calls."""
    module, *calls = (block for block in blocks(read(PAGE)) if block.action)
    path = tmp_path / module.action.removeprefix("write ")
    path.parent.mkdir()
    path.write_text(module.text)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(registry.task_names())
    yield [call.text for call in calls]
    for name in [name for name in sys.modules if name.partition(".")[0] == "orders"]:
        del sys.modules[name]
    for name in set(registry.task_names()) - known:
        registry.unregister(name)


@pytest.mark.usefixtures("database")
def test_the_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, more = calls
    exec(first, {})
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job WHERE task = 'charge-order'")
    shown = StringIO()
    call_command("salon_jobs", "show", str(job_id), stdout=shown)
    assert "after #" in shown.getvalue()
    assert "fetch-order: queued; before #" in shown.getvalue()
    assert "ship-order: held" in shown.getvalue()
    assert [job.task for job in drain_jobs()] == ["fetch-order", "charge-order", "ship-order"]
    names: dict[str, Any] = {}
    exec(more, names)
    with flow("import") as order:
        order.add(names["split"].call(2))
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["charged 700", "part 0", "part 1", "joined"]
