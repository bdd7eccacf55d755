"""Runs workers on a terminal, with a LOGGING of the project's own, and next to another on the same port."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
from pathlib import Path
from uuid import UUID

import pytest

from salon_jobs.core import events
from salon_jobs.process.log_lines import as_text
from salon_jobs.process.processors import usable_processors
from tests.conftest import manage
from tests.interpreter import run_python
from tests.process.terminal import COLOUR, Terminal
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.usefixtures("database")
BURST = ("runworker", "--burst")
# The fewest that are not the default.
OTHER_PROCESSES = 1 if usable_processors() > 1 else 2


def on_a_terminal(*options: str) -> list[str]:
    """Run a burst whose output is a terminal; return its lines."""
    with Terminal(*BURST, *options) as terminal:
        return terminal.read()


def test_terminal_shows_a_banner_and_short_lines() -> None:
    change("INSERT INTO salon_jobs_job (task) VALUES ('ping')")
    coloured = on_a_terminal("--health-addr", "127.0.0.1:0")
    assert any("\x1b[32mjob_succeeded\x1b[0m" in line for line in coloured), "those of the children are shown, too"
    lines = [COLOUR.sub("", line) for line in coloured]
    assert lines[0].startswith("salon_jobs ")
    assert lines[0].endswith(" worker")
    banner = dict(line.split(maxsplit=1) for line in lines[1:7])
    assert list(banner) == ["tasks", "queues", "runs", "takes", "database", "health"]
    assert re.fullmatch(r"memory about [\d,]+ MB at start; up to \d+ database connections", banner["takes"])
    assert banner["database"].endswith(" as worker_runtime")
    assert banner["health"].endswith("/readyz")
    assert lines[7] == "Runs until nothing is due."
    assert any(re.fullmatch(r"\d\d:\d\d:\d\d job_succeeded ping 1 in \S+ m?s", line) for line in lines)
    assert not any("worker_starting" in line or "health_listening" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.skipif(usable_processors() == 1, reason="a worker starts one process at least")
def test_banner_names_the_connection_limit() -> None:
    with Terminal(*BURST, "--concurrency", "90", processes=0) as terminal:
        text = COLOUR.sub("", " ".join(terminal.read()))
    assert f"limit     as connections allow, not {usable_processors()}; --processes N overrides" in text
    assert "connections_short" in text
    assert "raise max_connections" in text


def test_colours_can_be_refused() -> None:
    change("INSERT INTO salon_jobs_job (task) VALUES ('ping')")
    lines = on_a_terminal("--no-color")
    assert any("job_succeeded" in line for line in lines)
    assert not any(COLOUR.search(line) for line in lines)


def test_terminal_can_have_json() -> None:
    assert {json.loads(line)["level"] for line in on_a_terminal("--log-format", "json")} == {"info"}


def record(level: int, event: str, **fields: object) -> str:
    """Return a record as a terminal without colours shows it, without its time."""
    made = logging.LogRecord("salon_jobs", level, "", 0, "%s", (event,), None)
    made.__dict__.update(event=event, event_fields=fields)
    return as_text(made, terminal="plain").partition(" ")[2]


def test_terminal_shows_an_error_below_its_event() -> None:
    shown = record(
        logging.WARNING,
        events.JOB_RETRIED,
        task_name="charge-card",
        job_id=12,
        store_id=None,
        attempt=2,
        queue="default",
        duration_ms=31.2,
        error_class="shop.CardError",
        code="",
        error="refused\x1b[2J",
        delay_s=15,
    )
    assert shown == "job_retried charge-card 12 attempt 2 in 31 ms delay_s=15\n         CardError: refused\\x1b[2J"


def test_asked_stack_is_shown() -> None:
    """Indented, so that it looks like no other record."""
    made = logging.LogRecord("host", logging.INFO, "", 0, "here", (), None, sinfo="Stack:\n  at home")
    shown = as_text(made)
    assert shown.partition("\n")[0].endswith(" INFO    host here")
    assert shown.partition("\n")[2] == "  Stack:\n    at home"


@pytest.mark.parametrize(
    ("event", "fields", "said"),
    [
        (events.WORKER_STOPPING, {"running": 0}, "Stopping: no job is running."),
        (events.WORKER_STOPPING, {"running": 1}, "Stopping: waiting for 1 job; press Ctrl-C again to stop at once."),
        (events.WORKER_STOPPING, {"running": 2}, "Stopping: waiting for 2 jobs; press Ctrl-C again to stop at once."),
        (events.PROCESS_STOPPING, {"running": 2, "jobs": "export 3, ping 4"}, "Still running: export 3, ping 4."),
        (events.PROCESS_STOPPING, {"running": 1}, "Stopping: 1 message being sent."),
        (events.PROCESS_STARTED, {"kind": "relay", "process_id": 7, "pid": 300}, "Started: relay, pid 300."),
        (events.PROCESS_STOPPED, {"kind": "relay", "clean": True}, "Stopped: relay."),
        (events.PROCESS_STOPPED, {"kind": "relay", "clean": False}, "process_stopped kind=relay clean=False"),
        (events.PARTITIONS_OWNED, {"partitions": [1, 2], "relays": 8}, "Sends 2 of 16 partitions; relays: 8."),
    ],
)
def test_terminal_says_what_starts_and_stops(event: str, fields: dict[str, object], said: str) -> None:
    assert record(logging.INFO, event, **fields) == said


def test_second_ctrl_c_ends_the_wait(stores: list[UUID], tmp_path: Path) -> None:
    payload = json.dumps({"started": str(tmp_path / "started"), "gate": str(tmp_path / "gate")})
    [(job_id,)] = seen(
        "INSERT INTO salon_jobs_job (task, store_id, payload) VALUES ('e2e-wait-for-file', %s, %s) RETURNING id",
        stores[0],
        payload,
    )
    with Terminal("runworker", "--health-addr", "127.0.0.1:0", settings="tests.e2e.worker_settings") as terminal:
        eventually((tmp_path / "started").exists)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("Stopping: waiting for 1 job; press Ctrl-C again to stop at once.")
        terminal.wait_for(f"Still running: e2e-wait-for-file {job_id}.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("Stopped: supervisor.")
        assert terminal.process.wait(LIMIT_S) == 0
        assert terminal.text.count("Stopping: ") == terminal.text.count("Ctrl-C again to stop") == 1, (
            "not by each process"
        )
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]


def test_text_format_in_a_file() -> None:
    change("INSERT INTO salon_jobs_job (task) VALUES ('ping')")
    lines = manage(*BURST, "--log-format", "text").stdout.splitlines()
    [done] = [line for line in lines if "job_succeeded" in line]
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO    salon_jobs job_succeeded task_name=ping ", done
    )
    assert "=None" not in done
    assert not any("= " in line or line.endswith("=") for line in lines)


def test_logging_of_the_project_is_used(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("level", ["", "INFO"])
def test_task_logger_of_django_needs_a_level(level: str) -> None:
    program = (
        "import logging, django; django.setup()\n"
        "from salon_jobs.process.logs import configure_logging\n"
        "tasks = logging.getLogger('django.tasks')\n"
        f"tasks.setLevel({level!r} or 'NOTSET')\n"
        "configure_logging(level='INFO', log_format='json')\n"
        "tasks.info('started'); tasks.warning('odd'); logging.getLogger('django.other').info('other')"
    )
    done = run_python("-c", program, environment=os.environ)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line)["message"] for line in done.stdout.splitlines()]
    assert said == [*(["started"] if level else []), "odd", "other"]


def test_worker_logs_what_it_serves() -> None:
    """It warns of connections that the server will not give."""
    [(most,)] = seen("SHOW max_connections")
    threads = int(most) // 2
    done = manage(*BURST, "--queue", "a", "--queue", "b", "--processes", "2", "--concurrency", str(threads))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    [start] = [line for line in lines if line.get("event") == "worker_starting"]
    assert (start["queues"], start["processes"], start["concurrency"]) == ("a, b", 2, threads)
    assert start["tasks"] > 0
    assert start["connections"] == 2 * (threads + 3) + 2
    assert 3 * 20 < start["memory_mb"] < 3 * 500, "a supervisor and two processes"
    [warning] = [line for line in lines if line.get("event") == "connections_short"]
    assert (warning["level"], warning["connections"]) == ("warning", start["connections"])
    assert 0 < warning["allowed"] < int(most)
    assert "--processes" in warning["detail"]


@pytest.mark.parametrize(("asked", "processes"), [("0", usable_processors()), (str(OTHER_PROCESSES), OTHER_PROCESSES)])
def test_default_number_of_processes(asked: str, processes: int) -> None:
    lines = map(json.loads, manage(*BURST, WORKER_PROCESSES=asked).stdout.splitlines())
    started = [line for line in lines if line.get("event") in ("worker_starting", "process_started")]
    assert started[0]["processes"] == processes
    assert [line["kind"] for line in started[1:]].count("worker") == processes


@pytest.mark.parametrize("debug", [True, False])
def test_health_port_in_use(debug: bool) -> None:
    """It is a warning in debug mode, and an error otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = manage(*BURST, "--health-addr", address, DEBUG="on" if debug else "off")
    assert done.returncode == (0 if debug else 1), done.stderr
    remedy = f"cannot listen on {address} for health"
    assert ("health_not_listening" in done.stdout) is debug
    assert remedy in (done.stdout if debug else done.stderr)
    assert "--health-addr HOST:PORT" in (done.stdout if debug else done.stderr)
