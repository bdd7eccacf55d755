"""Long-running command in its own process, with its log and its health endpoint."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from django.db import connections

from tests.interpreter import ROOT, alive, start_python
from tests.settings import url_for
from tests.support import seen
from tests.waiting import LIMIT_S, eventually

_INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR")
URL = url_for("worker_runtime")
QUICK: dict[str, Any] = {"PROCESS_SILENT_AFTER": 1, "POLL_INTERVAL": 0.2}
# Has a process claim all that waits behind a long job once it has run a short one, however slow the machine is; and
# leave it there.
PREFETCHES = {"salon_jobs.worker.buffer._PREFETCH_S": 600.0}
KEEPS = {**PREFETCHES, "salon_jobs.worker.buffer.OVERDUE_S": 600.0}
# Has a process that was asked to stop interrupt its runs soon, by a short SHUTDOWN_GRACE, and then leaves the runs, the
# supervisor and the whole process as much time as a slow machine takes.
RESCUED_IN_TIME = {"salon_jobs.process.service._MARGIN_S": -180.0}
ENDS_IN_TIME = {
    **RESCUED_IN_TIME,
    "salon_jobs.worker.worker._LEAVE_S": -120.0,
    "salon_jobs.worker.worker._FORCED_S": 120.0,
    "salon_jobs.worker.supervisor._KILL_EARLY_S": -150.0,
    "salon_jobs.worker.supervisor._FORCED_KILL_S": 150.0,
}


def gone(*pids: int) -> bool:
    """Return whether these processes have ended, reaped or not."""
    return not any(map(alive, pids))


def end_worker_connections() -> int:
    """End every connection of the worker role to the tests' database; return how many."""
    connections["default"].close()
    [(count,)] = seen(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE usename = 'worker_runtime' AND datname = current_database()"
    )
    return int(count)


def inherited() -> dict[str, str]:
    """Return what every process needs of the environment."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def surroundings(url: str = URL, **settings: object) -> dict[str, str]:
    """Return the environment of a process with one URL and no other secret; ``settings`` are keys of SALON_JOBS."""
    return {
        **inherited(),
        "WORKER_DATABASE_URL": url,
        "SALON_JOBS_OVERRIDES": json.dumps(settings),
        "DJANGO_SETTINGS_MODULE": "tests.e2e.worker_settings",
    }


class WorkerProcess:
    """Worker process with these ``surroundings``, and more of an ``environment``; leaving the context ends it.

    The health endpoint takes a free port, which is in the log. With ``ready``, the context begins when the process is
    ready. ``program`` is what starts it in ``folder``.
    """

    command: ClassVar[str] = "runworker"
    settings_module: ClassVar[str] = "tests.e2e.worker_settings"
    _begins_ready = False

    def __init__(
        self,
        *arguments: str,
        url: str = URL,
        ready: bool = False,
        environment: Mapping[str, str] = {},
        program: Sequence[str] = ("manage.py",),
        folder: Path = ROOT,
        **settings: object,
    ) -> None:
        self._begins_ready = ready
        words = [*program, *self.command.split(), "--health-addr", "127.0.0.1:0", *arguments]
        new = {"NEW_INTERPRETERS": "1"} if "FAULT" in settings else {}
        own = {"DJANGO_SETTINGS_MODULE": self.settings_module, **new, **environment}
        self._start(words, {**surroundings(url, **settings), **own}, folder)

    def _start(self, words: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> None:
        self._changed = threading.Condition()
        self._ended = 0
        self.lines: list[str] = []
        self.errors: list[str] = []
        pipes = os.pipe(), os.pipe()
        self._process = start_python(
            *words, environment=environment, folder=folder, stdout=pipes[0][1], stderr=pipes[1][1], new_session=True
        )
        for (reader, writer), lines in zip(pipes, (self.lines, self.errors), strict=True):
            os.close(writer)
            threading.Thread(target=self._read, args=(os.fdopen(reader), lines), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return "".join([*self.lines, *self.errors])

    def logged(self, event: str, **fields: object) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in list(self.lines)]
        return [r for r in records if r.get("event") == event and all(r.get(k) == v for k, v in fields.items())]

    def wait_for(self, event: str, *, patience_s: float = LIMIT_S, **fields: object) -> dict[str, Any]:
        """Wait for such a record and return the first. Fail if the process ends without it."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while not (found := self.logged(event, **fields)):
                left = deadline - time.monotonic()
                assert left > 0, f"no {event} {fields} in time:\n{self.output}"
                assert self._ended < 2, f"it ended before {event} {fields}:\n{self.output}"
                self._changed.wait(left)
        return found[0]

    def ask(self, path: str) -> tuple[int, dict[str, Any]]:
        """Request a path of its health endpoint; return the status and body."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=LIMIT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    @property
    def address(self) -> str:
        """Where its health endpoint listens."""
        return str(self.wait_for("health_listening")["address"])

    def readiness(self) -> dict[str, Any]:
        """Return the body of /readyz, whatever the status is."""
        return self.ask("/readyz")[1]

    def children(self) -> list[dict[str, Any]]:
        """Return what /readyz shows of the processes that run jobs; none while the process is not ready."""
        children: list[dict[str, Any]] = self.readiness().get("children", [])
        return children

    def child(self) -> tuple[int, int]:
        """Return process_id and pid of the only child, when it is ready."""
        [child] = self.wait_until_ready().children()
        return child["process_id"], child["pid"]

    def wait_until_ready(self) -> Self:
        eventually(lambda: self.ask("/readyz")[0], 200, what=lambda: self.output)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def wait(self, patience_s: float = LIMIT_S) -> int:
        """Wait for the end and the last line of the log; return the exit status."""
        status = self._process.wait(patience_s)
        with self._changed:
            self._changed.wait_for(lambda: self._ended == 2, 5)
        return status

    def end(self) -> int:
        """Stop it and wait for its end; return the exit status."""
        self.stop()
        return self.wait()

    def __enter__(self) -> Self:
        if self._begins_ready:
            try:
                self.wait_until_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._ended += 1
            self._changed.notify_all()


class SchedulerProcess(WorkerProcess):
    command = "runscheduler"


class RelayProcess(WorkerProcess):
    command = "relay_outbox"


class ConsumerProcess(WorkerProcess):
    command = "consume_queue"
