"""Errors that psycopg raises itself, without the server, stop nothing else and are reported as bugs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from django.db import DataError, OperationalError

from salon_jobs.core import events
from salon_jobs.db import statements
from salon_jobs.db.statements import StatementRefused
from salon_jobs.jobs.limits import EffectiveLimit, Limits, limit
from salon_jobs.process.loop import Outage
from salon_jobs.worker import claim
from salon_jobs.worker.claim import Claimer
from tests import tasks
from tests.support import event_fields, event_names, leases_of

pytestmark = pytest.mark.usefixtures("limits_and_groups_at_once")
MIXED = {"scopes": ["a", "b"], "rates": [1.5, 2], "bursts": [True, "x"]}
STATEMENTS: dict[str, Callable[[], object]] = {
    "hot": lambda: statements.run_raw("read_tokens", MIXED, using="default"),
    "rows": lambda: statements.rows("read_tokens", MIXED, using="default"),
    "execute": lambda: statements.execute("read_tokens", MIXED, using="default"),
}


def claimed(claimer: Claimer) -> list[str]:
    return sorted(job.task for job in claimer.claim(10).jobs)


@pytest.mark.parametrize("burst", [20, None])
def test_rates_with_and_without_burst(process_id: int, burst: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """A bucket that is given and one that follows from its rate are of one type."""
    limit(task="test-system", rate="100/m", burst=20)
    limit(task="test-keyed-system", rate="1000/m", burst=burst)
    limit(queue="default", rate=7)
    tasks.system.enqueue()
    tasks.keyed_system.enqueue(note="a")
    assert claimed(Claimer(leases_of(process_id), None)) == ["test-keyed-system", "test-system"]
    assert not caplog.records


def test_unsendable_rate_stops_its_task_alone(
    process_id: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: Any = Fraction(5)
    rates = {"task:test-system": EffectiveLimit(rate=odd, burst=1), "task:test-keyed-system": EffectiveLimit(rate=5.0)}
    monkeypatch.setattr(claim, "load_limits", lambda *, using: Limits(rates))
    tasks.system.enqueue()
    tasks.keyed_system.enqueue(note="a")
    claimer = Claimer(leases_of(process_id), None)
    assert claimed(claimer) == ["test-keyed-system"]
    assert claimed(claimer) == []
    [fields] = event_fields(caplog, events.STATEMENT_REFUSED)
    assert fields["scope"] == "task:test-system"
    assert "read_tokens" in fields["error"]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("door", STATEMENTS)
def test_refused_statement_is_named(door: str) -> None:
    """The error names the statement and the types of its parameters, never their values."""
    with pytest.raises(StatementRefused, match=r"^read_tokens failed in psycopg.*mixed types") as caught:
        STATEMENTS[door]()
    assert "rates list[float | int], bursts list[bool | str]" in str(caught.value)
    assert statements.rows("read_tokens", {"scopes": ["a"], "rates": [1.0], "bursts": [2.0]}, using="default")


def test_refused_statement_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged as an error every 30 s, and its end is no end of an outage."""
    now = 0.0
    outage = Outage("rounds", using="default", clock=lambda: now)
    caplog.set_level("INFO")
    refused = StatementRefused("s", {}, DataError("mixed"))
    refused.__cause__ = psycopg.DataError("mixed")
    for _ in range(4):
        outage.lost(refused)
        now += 10
    outage.over()
    outage.lost(OperationalError("gone"))
    outage.over()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING", "INFO"]
    assert event_names(caplog) == ["statement_refused", "statement_refused", "database_lost", "database_back"]
    caplog.clear()
    now += 60
    outage.lost(OperationalError("gone"))
    now += 60
    outage.lost(refused)
    outage.over()
    assert event_names(caplog) == ["database_lost", "statement_refused", "database_back"]
