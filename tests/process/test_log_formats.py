"""Runs workers on a terminal, with a LOGGING of the project's own, and next to another on the same port."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import manage
from tests.interpreter import ROOT
from tests.support import change

pytestmark = pytest.mark.usefixtures("database")
BURST = ("runworker", "--burst")


def on_a_terminal(*options: str) -> list[str]:
    """Run a burst whose output is a terminal; return its lines."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    words = [sys.executable, "manage.py", *BURST, *options]
    done = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # all have closed the terminal
        os.close(ours)
    assert done.wait(60) == 0
    return text.decode().splitlines()


def test_a_terminal_shows_text_of_the_children_too() -> None:
    change("INSERT INTO salon_jobs_job (task) VALUES ('ping')")
    lines = on_a_terminal()
    assert all(" INFO    salon_jobs " in line for line in lines)
    assert any("job_succeeded" in line for line in lines)
    assert {json.loads(line)["level"] for line in on_a_terminal("--log-format", "json")} == {"info"}


def test_the_projects_own_logging_is_used(tmp_path: Path) -> None:
    (tmp_path / "own_logging.py").write_text(
        "from project.settings import *\n"
        "LOGGING = {'version': 1, 'formatters': {'own': {'format': 'OWN %(message)s'}}, 'handlers': {'own':"
        " {'class': 'logging.StreamHandler', 'stream': 'ext://sys.stdout', 'formatter': 'own'}},"
        " 'loggers': {'salon_jobs': {'handlers': ['own'], 'level': 'INFO'}}}"
    )
    own = {"DJANGO_SETTINGS_MODULE": "own_logging", "PYTHONPATH": str(tmp_path)}
    change("INSERT INTO salon_jobs_job (task) VALUES ('ping')")
    lines = manage(*BURST, **own).stdout.splitlines()
    assert all(line.startswith("OWN ") for line in lines)
    assert any(line.startswith("OWN job_succeeded ") for line in lines)


def test_a_worker_says_what_it_serves() -> None:
    done = manage(*BURST, "--queue", "a", "--queue", "b", "--processes", "2", "--concurrency", "3")
    [start] = [line for line in map(json.loads, done.stdout.splitlines()) if line.get("event") == "worker_starting"]
    assert (start["queues"], start["processes"], start["concurrency"]) == ("a, b", 2, 3)
    assert start["tasks"] > 0
    assert start["connections"] == 2 * (3 + 3) + 2


@pytest.mark.parametrize("debug", [True, False])
def test_a_health_port_in_use_is_a_warning_in_debug_and_an_error_otherwise(debug: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = manage(*BURST, "--health-addr", address, DEBUG="on" if debug else "off")
    assert done.returncode == (0 if debug else 1), done.stderr
    remedy = f"cannot listen on {address} for health"
    assert ("health_not_listening" in done.stdout) is debug
    assert remedy in (done.stdout if debug else done.stderr)
    assert "--health-addr HOST:PORT" in (done.stdout if debug else done.stderr)
