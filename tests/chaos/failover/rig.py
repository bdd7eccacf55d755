"""Primary, standby, broker, and the processes of a deployment: the things that a failover happens to."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import psycopg
from nats.js.errors import NotFoundError

from benchmarks import queue
from benchmarks.bench import prepare
from benchmarks.processes import descendants, environment, manage
from benchmarks.server import Database
from project.local.nats import NatsServer
from project.local.ports import free_port
from tests.chaos.failover.client import RUNS, Client, marker_of, second_marker
from tests.chaos.running import new_passwords, start
from tests.servers.standby import Replicated

STORES: Final = [queue.store_id(number) for number in range(1, 6)]
PATIENCE_S: Final = 60.0
TICK: Final = timedelta(minutes=1)
_DATABASE: Final = "salon"
_STREAM: Final = "orders"
_FRESH: Final = 200
_REPEATS_S: Final = 0.1
_POLL_S: Final = 0.05
_PROBE_S: Final = 4.0
_TABLES: Final = """
CREATE TABLE failover_asked (
    marker text PRIMARY KEY, kind text, key text, action text, server int DEFAULT inet_server_port());
CREATE TABLE failover_done (marker text, server int DEFAULT inet_server_port());
CREATE INDEX ON failover_done (marker);
CREATE TABLE failover_counted (name text PRIMARY KEY, number int NOT NULL DEFAULT 0);
GRANT SELECT, INSERT ON failover_asked, failover_done TO app, worker_runtime;
GRANT SELECT, UPDATE ON failover_counted TO app;
"""
_SECONDS: Final = """
SELECT generate_series(anchor_at + every, clock_timestamp(), every) FROM salon_jobs_schedule WHERE key = 'second'
"""
_COMMANDS: Final = {
    "worker": ("runworker", "--processes", "1", "--concurrency", "24"),
    "second worker": ("runworker", "--processes", "1", "--concurrency", "4"),
    "relay": ("relay_outbox",),
    "scheduler": ("runscheduler",),
}


class Rig(ExitStack):
    """Everything of one deployment. With ``hosts``, its processes know two hosts, else one address that moves."""

    def __init__(self, folder: Path, *, hosts: bool, silent_after_s: float) -> None:
        super().__init__()
        self.folder = folder
        self.hosts = hosts
        self._silent_after_s = silent_after_s
        self._passwords = new_passwords()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self.servers = Replicated(options={"max_connections": "100", "wal_retrieve_retry_interval": "100ms"})
        self.broker = NatsServer()
        self.web_port = free_port()
        self.readiness = Readiness()
        self._ticks_after = datetime.now(UTC)

    def __enter__(self) -> Self:
        """Start it all."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        self.enter_context(self.servers)
        self.enter_context(self.broker)
        with psycopg.connect(self.servers.primary.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}".encode())
        database = Database(self._on(self.servers.primary.url), self._passwords)
        prepare(database)
        for number, store in enumerate(STORES):
            database.execute("INSERT INTO store (id, name) VALUES (%s, %s)", store, f"Salon {number}")
        for statement in _TABLES.split(";")[:-1]:
            database.execute(statement)
        subjects = [_STREAM, f"{_STREAM}.>", *(f"fresh{number}.>" for number in range(_FRESH))]
        self.broker.stream(_STREAM, subjects, duplicate_window=_REPEATS_S)
        self.servers.follow()
        self.callback(self._end)
        self.start("web", self._web(), DATABASE_URL=self._url("web", hosts=True), SECRET_KEY=secrets.token_hex(16))
        for name in ("worker", "relay", "scheduler"):
            self.start_one(name)
        self.wait_ready()
        Client(self.web_port, "start", STORES).insist("second")
        self._ticks_after = datetime.now(UTC)

    def start_one(self, name: str) -> None:
        """Start one process of ours, known by this name."""
        port = free_port()
        self._addresses[name] = f"http://127.0.0.1:{port}/readyz"
        command = manage(*_COMMANDS[name], "--health-addr", f"127.0.0.1:{port}", "--log-format", "json")
        self.start(name, command, WORKER_DATABASE_URL=self._url("worker", hosts=self.hosts))
        self.readiness.watch(name, self._addresses[name])

    def start(self, name: str, command: list[str], **variables: str) -> None:
        """Start a process; its log is in the folder."""
        overrides = {
            "PROCESS_SILENT_AFTER": self._silent_after_s,
            "OUTBOX": {"PRODUCER": "failover", "POLL_INTERVAL": 0.5, "RETRY_BACKOFF": 0.2},
            "NATS": {"SERVER": self.broker.url, "TIMEOUT": 2, "RECONNECT_WAIT": 0.1, "RECONNECT_JITTER": 0},
        }
        env = environment(
            DJANGO_SETTINGS_MODULE="tests.chaos.failover.settings",
            SALON_JOBS_OVERRIDES=json.dumps(overrides),
            FAILOVER_OUTSIDE=str(self.folder),
            **variables,
        )
        self._processes[name] = start(command, env, self.folder / f"{name.replace(' ', '-')}.log")

    def ended(self) -> list[str]:
        """Return the processes that have ended, which none may do."""
        return [f"{name} ended with {p.returncode}" for name, p in self._processes.items() if p.poll() is not None]

    def wait_ready(self) -> None:
        """Wait until every process is ready, and the web process answers. Raises TimeoutError."""
        for address in self._addresses.values():
            wait_for(lambda address=address: _ready(address), f"{address} is not 200")  # type: ignore[misc]
        wait_for(lambda: _answers(self.web_port), "the web process does not answer")

    def connect(self) -> psycopg.Connection[Any]:
        """Connect to the database on the current primary as the superuser, outside any transaction."""
        return psycopg.connect(self._on(self.servers.primary.url), autocommit=True)

    def kill_child(self) -> None:
        """Kill the process that runs the worker's jobs; its supervisor replaces it."""
        for child in descendants(self._processes["worker"].pid):
            os.kill(child, signal.SIGKILL)

    def end_connections(self) -> None:
        """End every connection of our processes."""
        with self.connect() as connection:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename IN ('app', 'worker_runtime')"
            connection.execute(query)

    def runs(self) -> list[str]:
        """Return the markers of all runs, as their handlers wrote them to a file."""
        path = self.folder / RUNS
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def open_gate(self, gate: str) -> None:
        """Let the handlers that wait for it continue."""
        (self.folder / gate).touch()

    def stored(self) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
        """Return subject, headers and payload of everything in the stream."""
        return [(subject, headers, json.loads(body)) for subject, headers, body in self.broker.messages(_STREAM)]

    def last_of(self, subject: str) -> int:
        """Return the number in the last message with this subject; 0 if there is none."""

        async def read(client: Any) -> int:
            answer = await client.jetstream().get_last_msg(_STREAM, subject)
            return int(json.loads(answer.data)["number"])

        try:
            return self.broker.look(read)
        except NotFoundError:
            return 0

    def ticks(self) -> list[str]:
        """Return the markers of all ticks, of cron and of the schedule, that have been due since all was ready."""
        tick = self._ticks_after.replace(second=0, microsecond=0) + TICK
        due: list[str] = []
        while tick <= datetime.now(UTC):
            due.append(marker_of(tick))
            tick += TICK
        with self.connect() as connection:
            rows = connection.execute(_SECONDS).fetchall()
        return [*due, *(second_marker(tick) for (tick,) in rows)]

    def undone(self, markers: Collection[str]) -> set[str]:
        """Return those of these markers for which no job has added a row."""
        with self.connect() as connection:
            rows = connection.execute("SELECT marker FROM failover_done WHERE marker = ANY (%s)", [list(markers)])
            return set(markers) - {row[0] for row in rows}

    def begin_round(self, aggregates: list[str]) -> None:
        """Forget what earlier rounds wrote, except their ticks."""
        (self.folder / RUNS).unlink(missing_ok=True)
        with self.connect() as connection:
            connection.execute("TRUNCATE failover_asked, failover_counted")
            connection.execute("DELETE FROM failover_done WHERE marker !~ '^(cron|second)/'")
            connection.execute("INSERT INTO failover_counted (name) SELECT unnest(%s::text[])", [aggregates])

        async def purge(client: Any) -> None:
            await client.jetstream().purge_stream(_STREAM)

        self.broker.look(purge)

    def _url(self, role: str, *, hosts: bool) -> str:
        parts = urlsplit(Database(self._on(self.servers.primary.url), self._passwords).url(role))
        login = parts.netloc.rpartition("@")[0]
        if not hosts:
            return f"postgresql://{login}@127.0.0.1:{self.servers.address.port}{parts.path}?connect_timeout=2"
        names = ",".join(f"127.0.0.1:{host.port}" for host in self.servers.hosts)
        return f"postgresql://{login}@{names}{parts.path}?connect_timeout=2&target_session_attrs=read-write"

    def _on(self, url: str) -> str:
        return urlsplit(url)._replace(path=f"/{_DATABASE}").geturl()

    def _web(self) -> list[str]:
        return manage("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{self.web_port}")

    def _end(self) -> None:
        self.readiness.stop()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Readiness:
    """Threads that ask every process all the time whether it is ready."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._bad_at: dict[str, float] = {}
        self._threads: list[threading.Thread] = []

    def watch(self, name: str, address: str) -> None:
        thread = threading.Thread(target=self._watch, args=(name, address), daemon=True)
        self._threads.append(thread)
        thread.start()

    def healed_s(self, since: float) -> float:
        """Return after how many seconds the last answer came that was not 200."""
        return max(0.0, *(bad - since for bad in self._bad_at.values()), 0.0)

    def stop(self) -> None:
        self._stopping.set()

    def _watch(self, name: str, address: str) -> None:
        is_ready = False
        # Each question costs a connection to the database.
        while not self._stopping.wait(0.5 if is_ready else 0.1):
            if not (is_ready := _ready(address)):
                self._bad_at[name] = time.monotonic()


def wait_for(holds: Callable[[], bool], otherwise: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds. Raises TimeoutError with the text."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} after {patience_s:.0f} s")
        time.sleep(_POLL_S)


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=_PROBE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=_PROBE_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
