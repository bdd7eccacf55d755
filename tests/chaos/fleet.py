"""Workers that are restarted when they end, as by a service manager."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from benchmarks.processes import descendants, manage
from tests.chaos.running import start

_POLL_S: Final = 0.05
_RESTART_S: Final = 0.5
_STOP_S: Final = 40.0
_COMMAND: Final = manage(
    *("runworker", "--with-scheduler", "--processes", "2", "--concurrency", "4"),
    *("--health-addr", "127.0.0.1:0", "--log-format", "json"),
)


class Fleet:
    """Workers, each a supervisor that fires schedules too, with two children; leaving the context ends them."""

    def __init__(self, count: int, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._starts = Counter[int]()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.restarts = 0
        self._workers = [self._start(number) for number in range(count)]
        self._restarter = threading.Thread(target=self._restart_ended, name="chaos-fleet", daemon=True)
        self._restarter.start()

    def parents(self) -> list[int]:
        """Return the process ids of the supervisors."""
        with self._lock:
            return [worker.pid for worker in self._workers if worker.poll() is None]

    def children(self) -> list[int]:
        """Return the process ids of the processes that run jobs."""
        return [child for parent in self.parents() for child in descendants(parent)]

    def logged(self, event: str) -> int:
        """Count the log records of one event."""
        return sum(
            1
            for path in self._folder.glob("worker-*.log")
            for line in path.read_text(errors="replace").splitlines()
            if f'"{event}"' in line and line.startswith("{") and _event(line) == event
        )

    def stop(self) -> list[int]:
        """Stop all; return their exit statuses."""
        self._ending.set()
        self._restarter.join()
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        statuses = [worker.wait(_STOP_S) for worker in self._workers]
        self._workers = []
        return statuses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._restarter.join()
        for worker in self._workers:
            for pid in [worker.pid, *descendants(worker.pid)]:
                if worker.poll() is None:
                    os.kill(pid, signal.SIGCONT)
            worker.kill()
            worker.wait()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._starts[number] += 1
        return start(_COMMAND, self._environment, self._folder / f"worker-{number}-{self._starts[number]}.log")

    def _restart_ended(self) -> None:
        while not self._ending.wait(_POLL_S):
            for number, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    time.sleep(_RESTART_S)
                    with self._lock:
                        self._workers[number] = self._start(number)
                    self.restarts += 1


def _event(line: str) -> object:
    try:
        return json.loads(line).get("event")
    except ValueError:  # the last line of a process that was killed
        return None
