"""Shows which log events reach Sentry from a process with the project's settings: its own client, a real transport."""

from __future__ import annotations

import ast
import json
from collections import Counter
from typing import Any

import pytest

from project import settings
from salon_jobs.core import events as log_events
from tests.interpreter import ROOT, run_python
from tests.sentry_server import SentryServer

URLS = {"WORKER_DATABASE_URL": "postgresql://worker_runtime:p@127.0.0.1:1/salon"}
# Everything that is logged as a warning or worse, twice, as it is in an outage or by a process that tries again.
LOG_ALL = """
import json, logging, sys
import django
django.setup()
from salon_jobs.core.events import log_event
from salon_jobs.process.logs import configure_logging
configure_logging(%(configured)s)
for event, level in json.loads(sys.argv[2]).items():
    for _ in range(2):
        try:
            raise ZeroDivisionError("the till is closed")
        except ZeroDivisionError as error:
            log_event(level, event, exc_info=error if level == logging.ERROR else None, job_id=7, entry="nightly",
                      aggregate_type="rn::memory:::orders", consumer="billing", error="no route to host")
import sentry_sdk
sentry_sdk.flush(timeout=60)  # at its end a process has two seconds for it
"""
ERROR, WARNING, CRITICAL = 40, 30, 50
# By an event of its own, with what a person needs to know of the job or the message.
REPORTED = {"job_failed": ERROR, "message_failed": ERROR, "message_rejected": WARNING}
# One job, message or request each; or what somebody wanted.
ROUTINE = {
    "job_retried": WARNING,
    "job_cancelled": WARNING,
    "job_expired": WARNING,
    "job_timed_out": WARNING,
    "job_released": WARNING,
    "job_lease_lost": WARNING,
    "job_held_up": WARNING,
    "cron_held_up": WARNING,
    "schedules_held_up": WARNING,
    "job_rescued": WARNING,
    "message_retried": WARNING,
    "child_killed": WARNING,
    "chunk_split": WARNING,
    "process_dead": WARNING,
    "process_failed": ERROR,
    "health_not_listening": WARNING,
    "request_refused": WARNING,
    "store_erased": WARNING,
}
# Logged again for as long as the trouble lasts.
ONCE = {
    "database_lost": WARNING,
    "listener_lost": WARNING,
    "publisher_broken": ERROR,
    "source_lost": WARNING,
    "statement_refused": ERROR,
    "job_not_rescued": ERROR,
    "destinations_left_out": ERROR,
    "topics_not_read": WARNING,
    "connection_discarded": WARNING,
    "messages_unresolvable": WARNING,
}
EACH = {
    "cron_failed": ERROR,
    "schedule_failed": ERROR,
    "consumer_failed": ERROR,
    "relay_unmarked": ERROR,
    "child_died": ERROR,
    "job_callback_failed": ERROR,
    "job_not_claimed": ERROR,
    "waiting": ERROR,
    "process_registered_again": WARNING,
    "destination_lost": WARNING,
    "destination_unresolvable": WARNING,
    "burst_ended": WARNING,
    "tasks_unknown": WARNING,
    "partitions_lost": WARNING,
    "rescue_held_up": WARNING,
    "thread_died": CRITICAL,
    "job_outcome_unknown": WARNING,
    "log_lost": WARNING,
    "messages_passed_over": WARNING,
    "process_draining": WARNING,
    "process_stopped": WARNING,
    "listener_deaf": WARNING,
    "cron_missed": WARNING,
    "schedules_missed": WARNING,
    "catalogue_drift": WARNING,
    "connections_short": WARNING,
    "database_threads_busy": WARNING,
    "role_noticed": WARNING,
}
ALL = REPORTED | ROUTINE | ONCE | EACH


def report(configured: str = "", **environment: str) -> list[dict[str, Any]]:
    """Log everything in a process of the project; returns the events that reached Sentry."""
    server = SentryServer()
    with server.serving():
        done = run_python(
            *("-c", LOG_ALL % {"configured": configured}, "runworker", json.dumps(ALL)),
            environment={
                **settings.INHERITED_ENVIRONMENT,
                **URLS,
                "DJANGO_SETTINGS_MODULE": "project.settings",
                "SENTRY_DSN": server.dsn,
                **environment,
            },
        )
    assert done.returncode == 0, done.stderr
    return server.events


def counted(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["tags"]["log_event"] for event in events)


def logged_as_warning_or_worse() -> set[str]:
    """Return the events that salon_jobs hands to a call after such a level, also by way of a local variable."""
    names = {name: value for name, value in vars(log_events).items() if name.isupper() and isinstance(value, str)}
    found: set[str] = set()
    for path in (ROOT / "salon_jobs").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            locals_ = {
                ast.dump(target): node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
            }
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and len(node.args) > 1):
                level, event = call.args[:2]
                if isinstance(event, ast.Name):
                    event = locals_.get(ast.dump(ast.Name(event.id, ast.Store())), event)
                if names_in(level) & {"WARNING", "ERROR", "CRITICAL"}:
                    found |= {names[name] for name in names_in(event) & set(names)}
    return found


def names_in(expression: ast.expr) -> set[str]:
    nodes = list(ast.walk(expression))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_every_log_event_from_warning_on_is_decided() -> None:
    assert logged_as_warning_or_worse() == set(ALL)
    assert set(REPORTED) == log_events.REPORTED_OTHERWISE
    assert set(ROUTINE) == log_events.ROUTINE


def test_what_needs_a_person_reaches_sentry_once_each_grouped_by_event() -> None:
    events = report()
    assert counted(events) == {**dict.fromkeys(ONCE, 1), **dict.fromkeys(EACH, 2)}
    for event in events:
        name = event["tags"]["log_event"]
        assert event["fingerprint"] == [name]
        assert event["level"] == {WARNING: "warning", ERROR: "error", CRITICAL: "fatal"}[ALL[name]]
        assert ("exception" in event) is (ALL[name] == ERROR)
        assert event["tags"]["entry"] == "nightly"
        assert event["contexts"]["log"]["error"] == "no route to host"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SENTRY_LEVEL": "critical"}, {"thread_died"}),
        ({"SENTRY_SAMPLE_RATE": "0"}, set[str]()),
        # What is written to the output is another question.
        (
            {"LOG_LEVEL": "critical", "SENTRY_LEVEL": "error"},
            {name for name, level in (ONCE | EACH).items() if level >= ERROR},
        ),
    ],
)
def test_level_and_sample_rate_are_those_of_the_environment(environment: dict[str, str], expected: set[str]) -> None:
    assert set(counted(report(**environment))) == expected
