"""Shows what reaches Sentry, by a transport that keeps the events, with the SDK's own integrations at work."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk
from sentry_sdk.integrations.django import DjangoIntegration

from salon_jobs import Discard, current_job
from salon_jobs.integrations import sentry
from tests import tasks
from tests.integrations.conftest import sentry_client
from tests.support import change, claim, rescuer, run_due, running_on_a_thread

SECRET = "a-customers-name"
Events = list[dict[str, Any]]


@pytest.fixture
def events() -> Iterator[Events]:
    """Collect the events that the SDK would send."""
    sent: Events = []

    def keep(kind: str, payload: Any) -> None:
        if kind == "event":
            sent.append(payload)

    with sentry_client(keep, integrations=[DjangoIntegration()], include_local_variables=True):
        yield sent


def fail_until_the_end(process_id: int, hooks: tasks.Hooks, attempts: int) -> None:
    def body(note: str = "", **_: object) -> None:
        arguments = {"note": note, "attempt": current_job().attempt}
        raise RuntimeError("the till is closed") from KeyError(len(arguments))

    hooks.system = hooks.store = body
    for _ in range(attempts):
        change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
        run_due(process_id)


def test_exhausted_attempts_are_exactly_one_event_with_its_tags(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, events: Events
) -> None:
    handle = tasks.in_store.enqueue(store_id=stores[0], number=7)
    fail_until_the_end(process_id, hooks, 2)
    assert events == [], "nothing on a retry"
    fail_until_the_end(process_id, hooks, 2)
    [event] = events
    assert event["tags"] == {"task_name": "test-store", "store_id": str(stores[0]), "attempt": 3, "job_id": handle.id}
    assert event["transaction"] == "test-store"
    assert [value["type"] for value in event["exception"]["values"]] == ["KeyError", "RuntimeError"]
    assert event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "body"


def test_the_payload_never_goes_along(database: None, hooks: tasks.Hooks, process_id: int, events: Events) -> None:
    tasks.system.enqueue(note=SECRET)
    fail_until_the_end(process_id, hooks, 3)
    [event] = events
    assert event["tags"]["store_id"] == ""
    assert SECRET not in json.dumps(event, default=str)


def test_no_other_end_is_an_event(stores: list[UUID], hooks: tasks.Hooks, process_id: int, events: Events) -> None:
    def discard(**_: object) -> None:
        raise Discard("gone")

    tasks.system.enqueue()
    run_due(process_id)
    hooks.store = discard
    tasks.in_store.enqueue(store_id=stores[0])
    run_due(process_id)
    assert events == []


def test_a_payload_that_can_never_fit_is_one_event(database: None, process_id: int, events: Events) -> None:
    tasks.system.enqueue(note=SECRET)
    change("""UPDATE salon_jobs_job SET payload = payload || '{"gone": 1}'""")
    run_due(process_id)
    [event] = events
    assert event["exception"]["values"][-1]["type"] == "PayloadInvalid"
    assert SECRET not in json.dumps(event, default=str)


def test_a_job_that_kills_its_processes_is_one_event(stores: list[UUID], process_id: int, events: Events) -> None:
    handle = tasks.in_store.using(max_attempts=1).enqueue(store_id=stores[0])
    for number in range(3):
        assert events == []
        change(
            "INSERT INTO salon_jobs_process (id, kind, hostname, pid, heartbeat_at)"
            " VALUES (%s, 'worker', 'h', 1, now() - interval '1 h')",
            1000 + number,
        )
        claim(1000 + number)
        rescuer().run_once()
    [event] = events
    assert event["exception"]["values"][-1]["type"] == "ProcessDied"
    assert event["tags"]["job_id"] == handle.id


def log(error: Exception) -> None:
    logging.getLogger("host").error("could not open the till", exc_info=error)


def capture_and_more(error: Exception) -> None:
    sentry_sdk.capture_exception(error)
    sentry_sdk.capture_exception(KeyError("key"))


def capture_elsewhere(error: Exception) -> None:
    with sentry_sdk.isolation_scope():
        sentry_sdk.capture_exception(error)


@pytest.mark.parametrize("tell", [log, sentry_sdk.capture_exception, capture_and_more, capture_elsewhere])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_that_its_handler_reports_is_one_event_with_the_tags(
    database: None,
    hooks: tasks.Hooks,
    process_id: int,
    events: Events,
    tell: Callable[[Exception], object],
    *,
    is_async: bool,
) -> None:
    def body(**_: object) -> None:
        try:
            raise RuntimeError("the till is closed")
        except RuntimeError as error:
            tell(error)
            raise

    async def coroutine(**_: object) -> None:
        body()

    hooks.system, hooks.coroutine = body, coroutine
    declared = tasks.async_system if is_async else tasks.system
    handle = declared.using(max_attempts=1).enqueue()
    with running_on_a_thread(process_id, claim(process_id)):
        pass
    [event] = [event for event in events if event["exception"]["values"][-1]["type"] == "RuntimeError"]
    assert event["tags"] == {"task_name": declared.name, "store_id": "", "attempt": 1, "job_id": handle.id}


def test_an_event_of_the_handler_that_is_not_sent_counts_for_nothing(
    database: None, hooks: tasks.Hooks, process_id: int, events: Events
) -> None:
    def body(**_: object) -> None:
        try:
            raise RuntimeError("the till is closed")
        except RuntimeError as error:
            log(error)
            raise

    options = sentry_sdk.get_client().options
    options["before_send"] = lambda event, _: None if event.get("logger") == "host" else event
    hooks.system = body
    handle = tasks.system.using(max_attempts=1).enqueue()
    with running_on_a_thread(process_id, claim(process_id)):
        pass
    [event] = events
    assert event["tags"]["job_id"] == handle.id


def test_without_a_client_a_failure_passes_quietly(database: None, hooks: tasks.Hooks, process_id: int) -> None:
    tasks.system.enqueue()
    fail_until_the_end(process_id, hooks, 3)


def test_what_one_stores_job_left_behind_is_not_told_with_anothers_failure(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, events: Events
) -> None:
    def body(store_id: UUID, **_: object) -> None:
        sentry_sdk.add_breadcrumb(message=f"worked on {store_id}")
        sentry_sdk.get_isolation_scope().set_tag("customer", str(store_id))
        if store_id == stores[1]:
            raise RuntimeError("the till is closed")

    hooks.store = body
    for store_id in stores[:2]:
        tasks.in_store.using(max_attempts=1).enqueue(store_id=store_id)
    with running_on_a_thread(process_id, claim(process_id)):
        pass
    [event] = events
    assert str(stores[0]) not in json.dumps(event, default=str)
    assert f"worked on {stores[1]}" in [crumb.get("message") for crumb in event["breadcrumbs"]["values"]]


def test_texts_and_lines_of_code_hide_what_they_give_away() -> None:
    frame: dict[str, Any] = {"context_line": 'login(password="hunter2")', "pre_context": ['"token=hunter2"']}
    values = [{"value": "password=hunter2" + "x" * 5_000_000, "stacktrace": {"frames": [frame]}}, {"value": None}]
    event: Any = {"exception": {"values": values}}
    shown = str(sentry._without_secrets(event, {}))  # pyright: ignore[reportPrivateUsage]
    assert "hunter2" not in shown
    assert "password=***" in shown
    assert len(shown) < 5000
