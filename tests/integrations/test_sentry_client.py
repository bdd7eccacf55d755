"""Which log events reach Sentry from a process with the project's settings: its own client, a real transport."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable

import pytest

from project import settings
from salon_jobs.core import events as log_events
from tests.interpreter import ROOT, run_python
from tests.sentry_server import SentryServer

# Everything that is logged as a warning or worse, twice, as it is in an outage or by a process that tries again.
LOG_ALL = """
import json, logging, sys
import django
django.setup()
from salon_jobs.core.events import log_event
from salon_jobs.process.logs import configure_logging
configure_logging()
for event, level in json.loads(sys.argv[2]).items():
    for _ in range(2):
        log_event(level, event, exc_info=ValueError() if level == logging.ERROR else None, entry="nightly",
                  aggregate_type="rn::memory:::orders", consumer="billing", error="no route to host")
import sentry_sdk
sentry_sdk.flush(timeout=60)  # at its end a process has two seconds for it
"""
URL = "postgresql://worker_runtime:p@127.0.0.1:1/salon"
ERROR, WARNING, CRITICAL = 40, 30, 50
# Logged again for as long as the trouble lasts, and reported once.
ONCE = {
    **dict.fromkeys(("publisher_broken", "job_not_rescued", "destinations_left_out", "statement_refused"), ERROR),
    **dict.fromkeys(("database_lost", "listener_lost", "source_lost", "topics_not_read"), WARNING),
    **dict.fromkeys(("connection_discarded", "messages_unresolvable"), WARNING),
}
EACH = {
    **dict.fromkeys(("cron_failed", "schedule_failed", "consumer_failed", "relay_unmarked"), ERROR),
    **dict.fromkeys(("child_died", "waiting", "job_callback_failed", "job_not_claimed"), ERROR),
    **dict.fromkeys(("process_registered_again", "process_draining", "process_stopped", "burst_ended"), WARNING),
    **dict.fromkeys(("destination_lost", "destination_unresolvable", "partitions_lost", "log_lost"), WARNING),
    **dict.fromkeys(("tasks_unknown", "rescue_held_up", "job_outcome_unknown", "listener_deaf"), WARNING),
    **dict.fromkeys(("role_noticed", "cron_missed", "schedules_missed", "catalogue_drift"), WARNING),
    **dict.fromkeys(
        ("connections_short", "database_threads_busy", "messages_passed_over", "problems_unknown"), WARNING
    ),
    "thread_died": CRITICAL,
}
# Of one job, message or request each, or what somebody wanted; and what is reported by an event of its own.
NEVER = dict.fromkeys(log_events.ROUTINE | log_events.REPORTED_OTHERWISE, ERROR)


def names_in(expression: ast.AST) -> set[str]:
    nodes = list(ast.walk(expression))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def logged_from_warning_on() -> set[str]:
    """Return the events that salon_jobs hands to a call after such a level, also by way of a local variable."""
    names = {name: value for name, value in vars(log_events).items() if name.isupper() and isinstance(value, str)}
    found: set[str] = set()
    for path in (ROOT / "salon_jobs").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            nodes = list(ast.walk(function))
            assigned = [node for node in nodes if isinstance(node, ast.Assign)]
            local = {
                target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)
            }
            for call in (node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1):
                level, event = call.args[:2]
                event = local.get(event.id, event) if isinstance(event, ast.Name) else event
                if names_in(level) & {"WARNING", "ERROR", "CRITICAL"}:
                    found |= {names[name] for name in names_in(event) & set(names)}
    return found


def test_every_warning_is_decided() -> None:
    assert logged_from_warning_on() == {*ONCE, *EACH, *NEVER}


@pytest.mark.process
@pytest.mark.parametrize(
    ("environment", "reported"),
    [
        ({}, lambda level: True),
        ({"LOG_LEVEL": "critical", "SENTRY_LEVEL": "error"}, lambda level: level >= ERROR),
        ({"SENTRY_SAMPLE_RATE": "0"}, lambda level: False),
    ],
)
def test_sentry_gets_what_needs_person(environment: dict[str, str], reported: Callable[[int], bool]) -> None:
    server, levels = SentryServer(), ONCE | EACH | NEVER
    given = {**settings.INHERITED_ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "project.settings", **environment}
    with server.serving():
        words = ("-c", LOG_ALL, "runworker", json.dumps(levels))
        done = run_python(*words, environment={**given, "WORKER_DATABASE_URL": URL, "SENTRY_DSN": server.dsn})
    assert done.returncode == 0, done.stderr
    expected = dict.fromkeys(ONCE, 1) | dict.fromkeys(EACH, 2)
    counted = Counter(event["tags"]["log_event"] for event in server.events)
    assert counted == {name: count for name, count in expected.items() if reported(levels[name])}
    for event in server.events:
        name = event["tags"]["log_event"]
        assert event["fingerprint"] == [name]
        assert event["level"] == {WARNING: "warning", ERROR: "error", CRITICAL: "fatal"}[levels[name]]
        assert ("exception" in event) is (levels[name] == ERROR)
        assert event["tags"]["entry"] == "nightly"
        assert event["contexts"]["log"]["error"] == "no route to host"
