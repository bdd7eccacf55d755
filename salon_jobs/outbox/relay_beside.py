"""Runs a relay in a process that does other work, too; its process row of kind relay counts it among the relays."""

from __future__ import annotations

import logging
import threading
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox.relay import Relay
from salon_jobs.runtime.connections import refuse_small_pool, tidy_connections
from salon_jobs.runtime.presence import Presence, delete_row

_RETRY_S: Final = 0.5
# Relay, marker, pruner; heartbeat, two questions about health at a time.
_THREADS: Final = 6


class RelayBeside:
    """Is the loop of ``runworker --with-relay``, for a thread of its own."""

    def __init__(self, presence: Presence) -> None:
        """Prepare; no I/O. Raises ConfigurationError when a pool is too small for its threads."""
        refuse_small_pool(_THREADS)
        self._presence = presence
        self._relay = Relay(lambda: self._process_id)
        self._stopping = threading.Event()
        self._process_id = 0

    def run(self) -> bool:
        """Relay until stopped; True when everything that was sent is marked."""
        if not self._register():
            return True
        try:
            return self._relay.run()
        finally:
            self._leave()

    def stop(self) -> None:
        """Ask for the end: what is being published is finished; a second call forces it."""
        self._stopping.set()
        self._relay.stop()

    def facts(self) -> dict[str, object]:
        """Return what readiness shows of the relay. Raises NotReady."""
        return {"relay": self._relay.facts()}

    def samples(self) -> list[Sample]:
        """Return the metrics of the relay."""
        return self._relay.samples()

    def _register(self) -> bool:
        """Insert the row, as soon as the database lets us; False when stopped first."""
        while not self._stopping.is_set():
            try:
                self._process_id = self._presence.register_beside("relay")
            except (DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, log_events.DATABASE_LOST, loop="relay", error=str(error).strip())
                tidy_connections()
                self._stopping.wait(_RETRY_S)
            else:
                return True
        return False

    def _leave(self) -> None:
        self._presence.drop(self._process_id)
        try:
            delete_row(self._process_id)
        except (DatabaseError, InterfaceError) as error:  # it will be buried
            log_event(logging.WARNING, log_events.DATABASE_LOST, loop="relay", error=str(error).strip())
        connections.close_all()
