"""Runs a job's fenced transaction on bare threads: BEGIN, the store, a look at its row, our finish, COMMIT."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from typing import Any

from benchmarks.ceilings.claims import BATCH, claim, connect, register

_TASK = "bench-store-noop"
_STORE, _LEASE = 2, 9
_FINISH = "DELETE FROM salon_jobs_job WHERE id = %s AND lease = %s AND leased_by = %s AND state = 'running'"


class Threads:
    """Shares the claimed jobs among threads; whoever finds half a batch left lets the claimer fetch the next one."""

    def __init__(self, concurrency: int) -> None:
        self._jobs: deque[tuple[Any, ...]] = deque()
        self._low = threading.Event()
        self._filled = threading.Condition()
        self._concurrency = concurrency

    def run(self) -> None:
        """Work until nothing is due, then wait to be ended."""
        with connect() as connection:
            process_id = register(connection)
            for _ in range(self._concurrency):
                threading.Thread(target=self._work, args=(process_id,), daemon=True).start()
            while rows := claim(connection, process_id, _TASK):
                with self._filled:
                    self._jobs.extend(rows)
                    self._filled.notify_all()
                self._low.wait()
                self._low.clear()
        signal.pause()

    def _work(self, process_id: int) -> None:
        with connect() as connection:
            while True:
                job = self._take()
                connection.execute("BEGIN")
                connection.execute("SELECT set_config('app.current_store_id', %s, true)", (str(job[_STORE]),))
                connection.execute("SELECT 1 FROM store WHERE id = %s", (job[_STORE],)).fetchone()
                connection.execute(_FINISH, (job[0], job[_LEASE], process_id))
                connection.execute("COMMIT")

    def _take(self) -> tuple[Any, ...]:
        with self._filled:
            while not self._jobs:
                self._low.set()
                self._filled.wait()
            if len(self._jobs) == BATCH // 2:
                self._low.set()
            return self._jobs.popleft()


if __name__ == "__main__":
    Threads(int(sys.argv[1])).run()
