"""Shows by ``salon_jobs messages`` why messages wait."""

from __future__ import annotations

import json

import pytest

from tests.management.operator import run
from tests.outbox.test_operate_messages import ORDERS, write
from tests.support import change


@pytest.mark.usefixtures("database")
def test_a_pending_message_says_that_its_destination_is_paused_or_down() -> None:
    published, pending = write("published"), write("pending")
    assert "waiting" not in run("messages", "list")[0]
    assert json.loads(run("messages", "show", str(pending), "--json")[0])["waiting"] == ""
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, paused, paused_by, paused_at, outage_since, outage_code)"
        " VALUES (%s, true, 'ann', '2026-05-06T03:00+00', '2026-05-06T02:00+00', 'BROKER.DOWN')",
        ORDERS,
    )
    why = (
        "destination is paused by ann since 2026-05-06 03:00 UTC"
        " · destination has been down since 2026-05-06 02:00:00 UTC: BROKER.DOWN"
    )
    listed = {each["id"]: each["waiting"] for each in json.loads(run("messages", "list", "--json")[0])}
    assert listed == {published: "", pending: why}
    head, first, second = run("messages", "list")[0].splitlines()
    assert head.endswith("why")
    assert first.endswith(f"waiting: {why}; x")
    assert second.endswith("  x")
    assert f"waiting: {why}\n" in run("messages", "show", str(pending))[0]
    assert "waiting:" not in run("messages", "show", str(published))[0]
