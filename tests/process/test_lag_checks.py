"""Asks a web process whether jobs and messages are late, as the operator role, and without it."""

from __future__ import annotations

from datetime import timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable

from salon_jobs.control import pause, pause_destination
from salon_jobs.integrations import health_check as checks
from salon_jobs.integrations.health_check import JobTables, QueueLag, RelayLag
from salon_jobs.process.probe import Probe
from tests.e2e.severing_proxy import SeveringProxy
from tests.outbox.scene import ORDERS
from tests.settings import url_for
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")


def fault(check: HealthCheck) -> str:
    """Return the code that a check fails with, "" when it does not."""
    try:
        check.run()
    except ServiceUnavailable as error:
        return str(error).removeprefix("Unavailable: ")
    return ""


@pytest.fixture
def operator(settings: Any) -> None:
    """Look through the operator role, which sees the rows of all stores."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OPERATOR_DATABASE": "operator"}


@pytest.mark.usefixtures("operator")
def test_late_job_fails_the_check(stores: list[Any]) -> None:
    assert fault(QueueLag()) == ""
    change(
        "INSERT INTO salon_jobs_job (task, store_id, run_at) VALUES ('test-store', %s, now() - interval '6 minutes')",
        stores[0],
    )
    assert fault(QueueLag()) == "WORKER.LATE"
    assert fault(QueueLag(longest=timedelta(minutes=7))) == ""
    pause(store_id=stores[0], using="operator")
    assert fault(QueueLag()) == ""


@pytest.mark.usefixtures("operator")
def test_late_message_fails_the_check() -> None:
    assert fault(RelayLag()) == ""
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT salon_jobs_emit(%s, 'a', 'e', '{}', wake => false)", [ORDERS])
        cursor.execute("UPDATE salon_jobs_message SET created_at = now() - interval '6 minutes'")
        cursor.execute("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", [ORDERS])
    assert fault(RelayLag()) == "WORKER.LATE"
    assert fault(RelayLag(longest=timedelta(minutes=7))) == ""
    pause_destination(ORDERS, using="operator")
    assert fault(RelayLag()) == ""
    assert seen("SELECT count(*) FROM salon_jobs_message") == [(1,)]


def test_hanging_database_is_asked_once(settings: Any, monkeypatch: pytest.MonkeyPatch, operator: None) -> None:
    monkeypatch.setattr(checks, "_probe", cache(lambda ask, alias: Probe(partial(ask, alias), patience_s=0.2)))
    with SeveringProxy(url_for("jobs_operator")) as proxy:
        for alias in ("default", "operator"):
            monkeypatch.setitem(connections.settings[alias], "HOST", "127.0.0.1")
            monkeypatch.setitem(connections.settings[alias], "PORT", urlsplit(proxy.url).port)
        proxy.hang()
        assert [fault(check) for check in (JobTables(), QueueLag(), RelayLag()) * 2] == ["WORKER.NOT_READY"] * 6
        assert proxy.accepted == 3
        proxy.go_on()
        eventually(lambda: [fault(check) for check in (JobTables(), QueueLag(), RelayLag())], [""] * 3)


def test_lag_checks_need_the_operator_role(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OPERATOR_DATABASE": None}
    assert fault(QueueLag()) == "SETTINGS.INVALID"
