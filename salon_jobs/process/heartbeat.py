"""The process row in the database, and the thread that keeps its heartbeat fresh."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db import statements
from salon_jobs.models import Process
from salon_jobs.tenancy.connections import tidy_connections


def application_name(process_id: int) -> str:
    """Return the application name of a process's connections, so that whoever rescues its jobs can end them."""
    return f"salon_jobs/{process_id}"


def name_connections(process_id: int) -> None:
    """Name all connections opened from now on after the process, as a connection parameter, which poolers preserve.

    Closes this thread's own connection, and its pool, so that none is left without the name.
    """
    connection: Any = connections[conf.database]
    connections.settings[conf.database].setdefault("OPTIONS", {})["application_name"] = application_name(process_id)
    connection.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()


class Heartbeat:
    """Heartbeat of this process and its children, sent for all rows at once.

    A missing row means that the process was declared dead and its jobs were requeued: ``on_buried`` is then called in
    the heartbeat thread.
    """

    def __init__(self, kind: str, *, concurrency: int, queues: Sequence[str] | None, on_buried: Callable[[], None]):
        self._kind = kind
        self._concurrency = concurrency
        self._queues = queues
        self._on_buried = on_buried
        self._lock = threading.Lock()
        self._beaten: dict[int, Callable[[], None]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="salon-jobs-beat", daemon=True)
        self._written = time.monotonic()
        self.process_id = 0

    @property
    def beaten_s_ago(self) -> float:
        """Seconds since the database last confirmed a heartbeat."""
        return time.monotonic() - self._written

    def register(self) -> int:
        """Insert the row and start the heartbeat; returns the process id. Raises database errors."""
        self.process_id = self._insert(
            self._kind, os.getpid(), concurrency=self._concurrency, queues=self._queues, on_buried=self._on_buried
        )
        name_connections(self.process_id)
        self._thread.start()
        return self.process_id

    def register_child(
        self, kind: str, pid: int, *, concurrency: int, queues: Sequence[str] | None, on_buried: Callable[[], None]
    ) -> int:
        """Insert a row for a child and include it in our heartbeat; returns its process id. Raises database errors."""
        return self._insert(kind, pid, concurrency=concurrency, queues=queues, on_buried=on_buried)

    def register_embedded(self, kind: str) -> int:
        """Insert a row for a loop embedded in this process; returns its id. Raises database errors.

        The row shares our heartbeat; if it is declared dead, so is this process.
        """
        return self._insert(kind, os.getpid(), concurrency=1, queues=None, on_buried=self._on_buried)

    def drop(self, process_id: int) -> None:
        """Stop the heartbeat of a row whose process has ended. Idempotent."""
        with self._lock:
            self._beaten.pop(process_id, None)

    def stop(self) -> None:
        """Stop the heartbeat and delete our row. Idempotent. Call it after the last job was released."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        if self.process_id:
            delete_row(self.process_id)
            self.process_id = 0

    def beat(self) -> None:
        """Update every row once and call ``on_buried`` for those that are gone. Raises database errors."""
        with self._lock:
            ids = list(self._beaten)
        alive = {process_id for (process_id,) in statements.rows("beat", {"process_ids": ids})}
        self._written = time.monotonic()
        for process_id in ids:
            if process_id not in alive:
                with self._lock:
                    tell = self._beaten.pop(process_id, None)  # None if dropped meanwhile
                if tell is not None:
                    tell()

    def _insert(
        self, kind: str, pid: int, *, concurrency: int, queues: Sequence[str] | None, on_buried: Callable[[], None]
    ) -> int:
        row = Process.objects.using(conf.database).create(
            kind=kind,
            hostname=socket.gethostname()[:255],
            pid=pid,
            supervisor_id=self.process_id or None,
            queues=None if queues is None else list(queues),
            concurrency=concurrency,
        )
        self._written = time.monotonic()
        with self._lock:
            self._beaten[row.pk] = on_buried
        return int(row.pk)

    def _beat_until_stopped(self) -> None:
        interval = conf.heartbeat_interval.total_seconds()
        while not self._stop.wait(interval):
            try:
                self.beat()
            except (DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, events.DATABASE_LOST, loop="heartbeat", error=str(error).strip())
                tidy_connections()
        connections.close_all()


def delete_row(process_id: int) -> None:
    """Delete the row of a process that ended normally. Raises database errors."""
    Process.objects.using(conf.database).filter(pk=process_id).delete()
