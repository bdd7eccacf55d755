"""Checks of bounds that do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from salon_jobs import store_task
from salon_jobs.checks import check_consumers, check_database
from salon_jobs.checks.bounds import check_bounds
from salon_jobs.jobs import registry
from tests.tenancy.probe import ask

NATS = {"NATS": {"SERVER": "nats://127.0.0.1:4222"}}
CONSUMER = {"c": {"SOURCE": "rn::nats:::orders", "TASKS": {"e": "test-system"}}}


@pytest.fixture
def with_settings(settings: Any) -> Any:
    """Return a function that replaces SALON_JOBS by a few keys."""

    def replace(**given: Any) -> None:
        settings.SALON_JOBS = given

    return replace


@pytest.mark.parametrize(
    ("given", "check", "said"),
    [
        ({"POLL_INTERVAL": 5.1}, "W002", "more than 5 s"),
        ({"POLL_INTERVAL": 5}, None, ""),
        ({"NATS": {"TIMEOUT": 26}}, "W083", "waits 25 s for answers"),
        ({"NATS": {"TIMEOUT": 3}, "SHUTDOWN_GRACE": 4}, "W083", "waits 2 s for answers"),
        ({**NATS, "SNS": {"REGION": "eu-west-1"}, "AZURE": {"VISIBILITY_TIMEOUT": 30}}, None, ""),
    ],
)
def test_settings_that_do_not_fit_together_are_warned_of(
    with_settings: Any, given: dict[str, Any], check: str | None, said: str
) -> None:
    with_settings(**given)
    found = list(check_bounds())
    assert [each.id for each in found] == ([] if check is None else [f"salon_jobs.{check}"])
    for each in found:
        assert said in each.msg
        assert each.hint


def test_a_consumer_that_accepts_less_than_its_broker_delivers(with_settings: Any) -> None:
    with_settings(CONSUMERS=CONSUMER, MAX_PAYLOAD=65_536, **NATS)
    [warning] = check_consumers()
    assert warning.id == "salon_jobs.W081"
    assert "consumer 'c' delivers up to 1,048,576" in warning.msg
    with_settings(CONSUMERS=CONSUMER, **NATS)
    assert check_consumers() == []


@pytest.mark.parametrize(
    ("timeout", "host", "warns"),
    [
        (15, "a", True),
        ("15", "a", True),
        (5, "a,b,c", True),
        (7, "a,b", False),
        (None, "a", False),
        ("", "a", False),
        ("soon", "a", False),
    ],
)
def test_connecting_that_takes_longer_than_a_process_may_be_silent(
    with_settings: Any, monkeypatch: pytest.MonkeyPatch, timeout: object, host: str, warns: bool
) -> None:
    with_settings()
    alias = connections["default"].settings_dict
    monkeypatch.setitem(alias, "OPTIONS", {"connect_timeout": timeout})
    monkeypatch.setitem(alias, "HOST", host)
    assert [each.id for each in check_bounds()] == (["salon_jobs.W084"] if warns else [])


@pytest.fixture
def long_task() -> Iterator[None]:
    @store_task(name="test-long", timeout=timedelta(minutes=90))
    def run(store_id: UUID) -> None: ...

    yield
    registry.unregister("test-long")


@pytest.mark.usefixtures("database", "long_task")
@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_server_that_ends_transactions_before_the_tasks_timeout(setting: str) -> None:
    assert check_database(databases=["default"]) == []
    if not ask("SELECT count(*) FROM pg_settings WHERE name = %s", setting):  # transaction_timeout came with 17
        return
    ask(f"SELECT set_config('{setting}', '1h', false)")
    try:
        [warning] = check_database(databases=["default"])
    finally:
        connections["default"].close()
    assert warning.id == "salon_jobs.W022"
    assert f"'test-long' may run for 5400 s in one transaction, and {setting} is 3600 s" in warning.msg
