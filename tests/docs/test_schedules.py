"""Follows the page on schedules: its module is imported, its calls are made, what is due is fired."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.testing import drain_jobs
from tests.support import change, seen

PAGE = "docs/how-to/schedules.md"


def test_the_page(calls: list[str], stores: list[UUID], capsys: pytest.CaptureFixture[str]) -> None:
    add, change_them, look = calls
    names: dict[str, Any] = {"store_id": stores[0]}
    exec(add, names)
    assert capsys.readouterr().out == "created\n"
    assert seen("SELECT key, store_id FROM salon_jobs_schedule ORDER BY 1") == [
        ("terminal-7", None),
        ("weekly-report", stores[0]),
    ]
    exec(change_them, names)
    assert seen("SELECT key FROM salon_jobs_schedule") == [("weekly-report",)]
    change("UPDATE salon_jobs_schedule SET next_at = now(), owed_from = now() - interval '1 h'")
    StoredSchedules(using="default").poll()
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["terminal 7", f"Sales of {stores[0]}"]
    exec(look, names)
    assert capsys.readouterr().out.endswith(" succeeded\n")
