"""Every process of the project writes the log that the environment asks for."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.conftest import manage
from tests.interpreter import run_python
from tests.support import change

CONSUMER = {
    "CONSUMERS": '{"pings": {"SOURCE": "rn::nats:::pings", "TASKS": {"ping": "ping"}}}',
    "NATS_SERVER": "nats://127.0.0.1:1",
    "NATS_MAX_RECONNECTS": "0",
}
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "runworker": ([], {}),
    "runscheduler": (["--at", "2026-05-05T18:00+00:00"], {}),
    "relay_outbox": ([], {}),
    "consume_queue": ([], CONSUMER),
}
PING = "INSERT INTO salon_jobs_job (task) VALUES ('ping')"
WEB = "import project.wsgi, logging; logging.getLogger('shop').info('opened'); logging.getLogger('shop').error('shut')"


def written(command: str, *options: str, **environment: str) -> list[str]:
    """Run a burst; return the lines of its log."""
    arguments, needed = COMMANDS[command]
    return manage(command, "--burst", *arguments, *options, **needed, **environment).stdout.splitlines()


def web(**environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment}
    return run_python("-c", WEB, environment=surroundings)


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=() if name == "runscheduler" else pytest.mark.slow) for name in COMMANDS]
)
def test_a_process_writes_what_the_environment_says_and_its_options_override_that(database: None, command: str) -> None:
    lines = written(command, LOG_FORMAT="text")
    assert lines
    # The consumer finds no broker, and says so at its end.
    last = "WARNING" if command == "consume_queue" else "INFO   "
    assert all(" INFO    salon_jobs " in line for line in lines[:-1])
    assert f" {last} salon_jobs " in lines[-1]
    change("DELETE FROM salon_jobs_cron_tick")  # to fire it again
    asked = written(command, "--log-level", "info", "--log-format", "json", LOG_LEVEL="error", LOG_FORMAT="text")
    assert {json.loads(line)["level"] for line in asked} == {"info", last.strip().lower()}


def test_the_processes_of_a_worker_write_the_same(database: None) -> None:
    change(PING)
    assert [line for line in written("runworker", LOG_FORMAT="text") if "job_succeeded" in line]
    change(PING)
    assert written("runworker", LOG_LEVEL="error") == []


def test_the_option_takes_what_the_setting_takes(database: None) -> None:
    done = manage("runworker", "--burst", "--log-level", "warn")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (
        "argument --log-level: must be debug, info, warning, error or critical, not 'loud'"
        in manage("runworker", "--burst", "--log-level", "loud").stderr
    )


def test_the_web_process_writes_the_same(database: None) -> None:
    by_default = [json.loads(line) for line in web().stdout.splitlines()]
    assert [(line["level"], line["logger"], line["message"]) for line in by_default] == [
        ("info", "shop", "opened"),
        ("error", "shop", "shut"),
    ]
    [line] = web(LOG_LEVEL="error", LOG_FORMAT="text").stdout.splitlines()
    assert line.endswith("ERROR   shop shut")


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("LOG_LEVEL", "loud", "['LOGGING']['LEVEL'] must be debug, info, warning, error or critical, not 'loud'"),
        ("LOG_FORMAT", "xml", "['LOGGING']['FORMAT'] must be one of json, text, not 'xml'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(database: None, variable: str, value: str, complaint: str) -> None:
    assert f"SALON_JOBS{complaint}" in manage("runworker", "--burst", **{variable: value}).stderr
    assert f"SALON_JOBS{complaint}" in web(**{variable: value}).stderr
