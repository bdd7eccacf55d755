"""Watches what a worker uses while it runs jobs: connections, memory, processor time."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

from benchmarks import processor
from benchmarks.observer import OBSERVER
from benchmarks.processes import Running, descendants, resident_mb
from benchmarks.server import Database

_LOOK_S: Final = 0.25
_CONNECTIONS: Final = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> %s
"""


class Usage:
    """Most connections to one database and most memory of the processes that run jobs. A context manager.

    The memory is that of a worker's children; of the worker itself if it has none.
    """

    def __init__(self, worker: Running, database: Database) -> None:
        self.connections = 0
        self.memory_mb = 0.0
        self._worker, self._database = worker, database
        self._began_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """Let the processor time count from now on."""
        self._began_s = processor.seconds([self._worker.pid])

    def processor_s(self) -> float:
        """Return the worker's processor time since then."""
        return processor.seconds([self._worker.pid]) - self._began_s

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._database.connect(application_name=OBSERVER) as connection:
            while not self._over.wait(_LOOK_S):
                [(count,)] = connection.execute(_CONNECTIONS, [OBSERVER]).fetchall()
                self.connections = max(self.connections, count)
                pid = self._worker.pid
                try:
                    used_mb = sum(map(resident_mb, descendants(pid) or [pid]))
                except OSError:  # one has just ended
                    continue
                self.memory_mb = max(self.memory_mb, used_mb)
