"""Keeps the row that shows that this process lives, and beats it from a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.models import Process
from salon_jobs.runtime.connections import tidy_connections


def application_name(process_id: int) -> str:
    """Name the connections of a process, so that whoever buries it can end them."""
    return f"salon_jobs/{process_id}"


def name_connections(process_id: int) -> None:
    """Give the connections that this process opens from now on its name: as a connection parameter, which poolers keep.

    This thread's own is closed, and a pool with it, so that none is left without the name.
    """
    connection: Any = connections[conf.database]
    connections.settings[conf.database].setdefault("OPTIONS", {})["application_name"] = application_name(process_id)
    connection.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()


class Presence:
    """Registers the process, beats its row, and calls ``on_buried`` when the row is gone: others have our jobs then."""

    def __init__(self, kind: str, *, concurrency: int, queues: Sequence[str] | None, on_buried: Callable[[], None]):
        self._kind = kind
        self._concurrency = concurrency
        self._queues = queues
        self._on_buried = on_buried
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="salon-jobs-beat", daemon=True)
        self.process_id = 0

    def register(self) -> int:
        """Insert the row and start to beat; returns the process id. Raises database errors."""
        row = Process.objects.using(conf.database).create(
            kind=self._kind, hostname=socket.gethostname()[:255], pid=os.getpid(),
            queues=None if self._queues is None else list(self._queues), concurrency=self._concurrency,
        )  # fmt: skip
        self.process_id = row.pk
        name_connections(row.pk)
        self._thread.start()
        return self.process_id

    def stop(self) -> None:
        """Stop to beat and delete the row; idempotent. Call it after the last job was given back."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        if self.process_id:
            Process.objects.using(conf.database).filter(pk=self.process_id).delete()
            self.process_id = 0

    def _beat_until_stopped(self) -> None:
        interval = conf.heartbeat_interval.total_seconds()
        while not self._stop.wait(interval):
            try:
                with connections[conf.database].cursor() as cursor:
                    cursor.execute(sql.load("beat"), {"process_id": self.process_id})
                    alive = cursor.rowcount == 1
            except (DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, log_events.DATABASE_LOST, loop="heartbeat", error=str(error).strip())
                tidy_connections()
                continue
            if not alive:
                self._on_buried()
                break
        connections.close_all()
