"""The process row in the database, and the thread that keeps its heartbeat fresh."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.db import statements
from salon_jobs.models import Process
from salon_jobs.process.loop import Loop


def application_name(process_id: int) -> str:
    """Return the application name of a process's connections, by which a rescue finds and ends them."""
    return f"salon_jobs/{process_id}"


def name_connections(process_id: int) -> None:
    """Name all connections opened from now on after the process, by a connection parameter, which poolers preserve.

    Closes this thread's own connection, and the pool, so that none without the name is left.
    """
    connection: Any = connections[conf.database]
    connections.settings[conf.database].setdefault("OPTIONS", {})["application_name"] = application_name(process_id)
    connection.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()


class Heartbeat(Loop):
    """Heartbeat of this process and its children, sent for all rows at once.

    A missing row means that the process was declared dead and its jobs were requeued: ``on_dead`` is then called in
    the heartbeat thread.
    """

    def __init__(self, kind: str, *, concurrency: int, queues: Sequence[str] | None, on_dead: Callable[[], None]):
        super().__init__("heartbeat")
        self._kind = kind
        self._concurrency = concurrency
        self._queues = queues
        self._on_dead = on_dead
        self._lock = threading.Lock()
        self._beaten: dict[int, Callable[[], None]] = {}
        self.process_id = 0

    def register(self) -> int:
        """Insert the row, start the heartbeat and return the process id. Raises database errors."""
        self.process_id = self.register_child(
            self._kind, os.getpid(), concurrency=self._concurrency, queues=self._queues, on_dead=self._on_dead
        )
        name_connections(self.process_id)
        self.start()
        return self.process_id

    def register_child(
        self, kind: str, pid: int, *, concurrency: int, queues: Sequence[str] | None, on_dead: Callable[[], None]
    ) -> int:
        """Insert a row for a child, include it in our heartbeat and return its process id. Raises database errors."""
        row = Process.objects.using(conf.database).create(
            kind=kind,
            hostname=socket.gethostname()[:255],
            pid=pid,
            supervisor_id=self.process_id or None,
            queues=None if queues is None else list(queues),
            concurrency=concurrency,
        )
        with self._lock:
            self._beaten[row.pk] = on_dead
        return int(row.pk)

    def register_embedded(self, kind: str) -> int:
        """Insert a row for a loop embedded in this process and return its id. Raises database errors.

        The row shares our heartbeat. If it is gone, this process ends.
        """
        return self.register_child(kind, os.getpid(), concurrency=1, queues=None, on_dead=self._on_dead)

    def drop(self, process_id: int) -> None:
        """Stop the heartbeat of a row whose process has ended. Idempotent."""
        with self._lock:
            self._beaten.pop(process_id, None)

    def poll(self) -> float:
        """Update every row once and call ``on_dead`` for those that are gone."""
        with self._lock:
            process_ids = list(self._beaten)
        alive = {process_id for (process_id,) in statements.rows("beat", {"process_ids": process_ids})}
        for process_id in process_ids:
            if process_id not in alive:
                with self._lock:
                    on_dead = self._beaten.pop(process_id, None)  # None if dropped meanwhile
                if on_dead is not None:
                    on_dead()
        return conf.heartbeat_interval.total_seconds()

    def finish(self) -> bool:
        """Delete the row. Stop a heartbeat only after the last job was given back."""
        return self.outage.attempt(lambda: delete_row(self.process_id))


def delete_row(process_id: int) -> None:
    """Delete the row of a process that ended normally. Raises database errors."""
    Process.objects.using(conf.database).filter(pk=process_id).delete()
