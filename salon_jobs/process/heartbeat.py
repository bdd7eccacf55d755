"""The process row in the database, and the thread that keeps its heartbeat fresh."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections
from psycopg import IsolationLevel

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db import statements
from salon_jobs.models.process import new_process_id
from salon_jobs.process.loop import Loop, Outage


def application_name(process_id: int) -> str:
    """Return the application name of a process's connections, by which a rescue finds and ends them."""
    return f"salon_jobs/{process_id}"


def name_connections(process_id: int, *, using: str) -> None:
    """Name all connections opened from now on after the process, by a connection parameter, which poolers preserve.

    Their transactions are READ COMMITTED, whatever the server's default: limits are counted after waiting for a lock,
    and must include commits from that time. Closes this thread's own connection, and the pool, so that none without the
    name is left.
    """
    connection: Any = connections[using]
    options = connections.settings[using].setdefault("OPTIONS", {})
    options["application_name"] = application_name(process_id)
    options.setdefault("isolation_level", IsolationLevel.READ_COMMITTED)
    connection.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()


@dataclass(slots=True)
class _Row:
    """Columns of a process's row, and the callback for when the row is gone; None inserts it again."""

    columns: dict[str, Any]
    on_gone: Callable[[], None] | None


class Heartbeat(Loop):
    """Heartbeat of this process and its children, sent for all rows at once.

    A row is gone when a rescuer declared the process dead, which queued its jobs again, or when a failover lost the
    last transactions. The two cannot be distinguished, so it matters whether the process holds jobs:

    - A child that runs jobs is killed (``on_gone``) and replaced. In both cases none of its jobs is leased to it any
      more: a lost row was inserted before the claims of that process, so these are lost too. Its current runs cannot be
      recorded, and may run elsewhere at the same time.
    - Every other process inserts its row again. It holds nothing that others could have taken, apart from a relay's
      partitions, which have a fence of their own. Its id is unique forever, so the row can only be its own.

    A row that survived with an old heartbeat, since the last ones were lost, is refreshed by the next heartbeat. That
    comes as soon as any loop of this process reaches the database again.
    """

    wakes_after_outage = True

    def __init__(self, kind: str, *, using: str, concurrency: int, queues: Sequence[str] | None) -> None:
        super().__init__("heartbeat", using=using)
        self._kind = kind
        self._concurrency = concurrency
        self._queues = queues
        self._lock = threading.Lock()
        self._rows: dict[int, _Row] = {}
        self.process_id = 0

    def register(self) -> int:
        """Insert the row, start the heartbeat and return the process id. Raises database errors."""
        self.process_id = self.insert(self._kind, concurrency=self._concurrency, queues=self._queues)
        name_connections(self.process_id, using=self.using)
        self.start()
        return self.process_id

    def insert(
        self,
        kind: str,
        *,
        pid: int | None = None,
        concurrency: int = 1,
        queues: Sequence[str] | None = None,
        on_gone: Callable[[], None] | None = None,
    ) -> int:
        """Insert a row of this process, such as for an embedded loop, or of its child ``pid``; return its process id.

        It shares our heartbeat. ``on_gone`` is called in the heartbeat's thread when the row is gone, which otherwise
        is inserted again. Raises database errors.
        """
        columns: dict[str, Any] = {
            "kind": kind,
            "hostname": socket.gethostname()[:255],
            "pid": pid or os.getpid(),
            "supervisor_id": self.process_id or None,
            "queues": None if queues is None else json.dumps(list(queues)),
            "concurrency": concurrency,
            "started_at": None,
        }
        inserted: list[tuple[datetime]] = []
        while not inserted:
            columns["id"] = new_process_id()
            inserted = statements.rows("register_process", columns, using=self.using)
        [(columns["started_at"],)] = inserted
        with self._lock:
            self._rows[columns["id"]] = _Row(columns, on_gone)
        return int(columns["id"])

    def drop(self, process_id: int) -> None:
        """Stop the heartbeat of a row whose process has ended. Idempotent."""
        with self._lock:
            self._rows.pop(process_id, None)

    def poll(self) -> float:
        """Update every row once; insert missing rows again, or have their processes replaced."""
        with self._lock:
            rows = dict(self._rows)
        alive = {process_id for (process_id,) in statements.rows("beat", {"process_ids": list(rows)}, using=self.using)}
        for process_id, row in rows.items():
            if process_id in alive or process_id not in self._rows:  # it may have been dropped in the meantime
                continue
            if row.on_gone is not None:
                self.drop(process_id)
                row.on_gone()
            elif statements.rows("register_process", row.columns, using=self.using):
                kind: str = row.columns["kind"]
                log_event(logging.WARNING, events.PROCESS_REGISTERED_AGAIN, kind=kind, process_id=process_id)
        return conf.heartbeat_interval.total_seconds()

    def finish(self) -> bool:
        """Delete the row. Stop a heartbeat only after the last job was given back."""
        return self.outage.attempt(lambda: delete_row(self.process_id, using=self.using))


class EmbeddedRow:
    """Row of a loop that runs inside another process and counts as a process for the others, such as a relay."""

    def __init__(self, kind: str, heartbeat: Heartbeat) -> None:
        self._kind, self._heartbeat = kind, heartbeat
        self.process_id = 0

    def insert(self) -> int:
        """Insert the row, the first time, and return the process id. Raises database errors."""
        if not self.process_id:
            self.process_id = self._heartbeat.insert(self._kind)
        return self.process_id

    def delete(self, outage: Outage) -> None:
        """Stop the heartbeat and delete the row; if that fails, a rescuer will declare it dead."""
        self._heartbeat.drop(self.process_id)
        if self.process_id:
            outage.attempt(lambda: delete_row(self.process_id, using=self._heartbeat.using))


def delete_row(process_id: int, *, using: str) -> None:
    """Delete the row of a process that ended normally, and note its end. Raises database errors."""
    statements.rows("delete_process", {"process_id": process_id, "silent_after": None, "died": False}, using=using)
