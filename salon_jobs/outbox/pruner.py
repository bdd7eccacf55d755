"""Deletes messages that were sent or skipped long enough ago, in batches, on a thread beside the relay."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.runtime.connections import tell_lost, tidy_connections

_EVERY_S: Final = 60.0
_ROUND_S: Final = 0.5
_FROM_THE_START_S: Final = 3600.0
# Longer than anything is kept: nothing is deleted.
_FOR_EVER: Final = timedelta(days=365_000)


class MessagePruner:
    """Walks the table by ids, round by round; any number of them may work at once.

    A round ends behind half a second, or where messages are too young. The walk begins anew every hour, for what
    was sent late (after an operator's retry, say).
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._after = 0
        self._began = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="salon-jobs-message-pruner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it ended. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def run_once(self) -> int:
        """Delete for half a second at most, and log the count; returns how many. Role: worker, autocommit.

        Raises database errors; what was deleted before stays deleted.
        """
        end = self._clock() + _ROUND_S
        if self._clock() - self._began >= _FROM_THE_START_S:
            self._after, self._began = 0, self._clock()
        total = 0
        while True:
            deleted, after, young = self._prune()
            total += deleted
            if after is None:
                self._after = 0
                break
            if young:
                break
            self._after = after
            if self._clock() >= end:
                break
        if total:
            log_event(logging.INFO, log_events.PRUNED, messages=total)
        return total

    def _prune(self) -> tuple[int, int | None, bool]:
        ages = {
            "published": conf.outbox.retain_published or _FOR_EVER, "skipped": conf.outbox.retain_skipped or _FOR_EVER,
        }  # fmt: skip
        with connections[conf.database].cursor() as cursor:
            parameters: dict[str, Any] = {"after": self._after, **ages}
            cursor.execute(sql.load("prune_messages"), parameters)
            row: tuple[int, int | None, bool] = cursor.fetchone()
            return row

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.run_once()
            except (DatabaseError, InterfaceError) as error:
                tell_lost(error, loop="message pruner")
            tidy_connections()
        connections.close_all()
