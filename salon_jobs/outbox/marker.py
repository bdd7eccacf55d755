"""Threads that mark published messages and prune old ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db import statements
from salon_jobs.outbox import queries
from salon_jobs.outbox.backlog import Backlog
from salon_jobs.tenancy.connections import log_lost, tidy_connections

_MOST = 5000
_RETRY_S = 0.2


@dataclass(slots=True)
class Settled:
    """Outcome of one published batch: IDs published, and IDs skipped with the reason."""

    backlog: Backlog
    published: Sequence[int]
    skipped: dict[int, str] = field(default_factory=dict[int, str])


class Marker:
    """Thread that marks settled messages, retrying until that is written: others are sent again.

    ``on_marked`` is called after each write, because there is room for more messages.
    """

    def __init__(self, on_marked: Callable[[], None]) -> None:
        self._on_marked = on_marked
        self._changed = threading.Condition()
        self._settled: list[Settled] = []
        self._busy = self._stopping = self._given_up = False
        self._give_up_at = float("inf")
        self.published = self.skipped = 0
        self._thread = threading.Thread(target=self._run, name="salon-jobs-marker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, settled: Settled) -> None:
        """Queue the outcome of one batch."""
        with self._changed:
            self._settled.append(settled)
            self._changed.notify_all()

    def stop(self, grace_s: float) -> bool:
        """Write what is left, for at most ``grace_s``; return whether all was written. Idempotent."""
        with self._changed:
            self._stopping = True
            self._give_up_at = time.monotonic() + grace_s
            self._changed.notify_all()
        self._thread.join(grace_s + 1)
        return not self._settled and not self._busy and not self._given_up

    @property
    def alive(self) -> bool:
        """Whether the thread runs; an unexpected error or ``stop`` ends it."""
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        with self._changed:
            return not self._settled and not self._busy

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._write_until_written(batch)
                with self._changed:
                    self._busy = False
        finally:
            connections.close_all()

    def _next(self) -> list[Settled]:
        with self._changed:
            while not self._settled and not self._stopping:
                self._changed.wait()
            count = total = 0
            while count < len(self._settled) and (not count or total < _MOST):
                total += len(self._settled[count].published)
                count += 1
            batch, self._settled = self._settled[:count], self._settled[count:]
            self._busy = bool(batch)
            return batch

    def _write_until_written(self, batch: list[Settled]) -> None:
        while time.monotonic() < self._give_up_at:
            try:
                tidy_connections()
                self._write(batch)
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="marker")
                with self._changed:
                    self._changed.wait(_RETRY_S)
            else:
                return
        self._given_up = True
        log_event(logging.ERROR, events.RELAY_UNMARKED, messages=sum(len(s.published) for s in batch))

    def _write(self, batch: list[Settled]) -> None:
        published = [message_id for settled in batch for message_id in settled.published]
        if published:
            queries.mark_published(published)
        skipped = {message_id: reason for settled in batch for message_id, reason in settled.skipped.items()}
        if skipped:
            queries.mark_skipped(skipped)
        for settled in batch:
            settled.backlog.marked([*settled.published, *settled.skipped])
        self.published += len(published)
        self.skipped += len(skipped)
        self._on_marked()


_EVERY_S: Final = 60.0
_ROUND_S: Final = 0.5
_FROM_THE_START_S: Final = 3600.0
# Longer than anything is kept, so nothing is deleted.
_FOR_EVER: Final = timedelta(days=365_000)


class MessagePruner:
    """Thread that deletes old messages, walking the table by ID; several may run at once.

    A round ends after half a second, or where messages are too young. The walk restarts every hour, for messages that
    were sent late (after an operator's retry, for example).
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
        """Stop the thread and wait for it to end. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def run_once(self) -> int:
        """Delete for at most half a second and log the count; return how many. Role: worker, autocommit.

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
            log_event(logging.INFO, events.PRUNED, messages=total)
        return total

    def _prune(self) -> tuple[int, int | None, bool]:
        ages = {
            "published": conf.outbox.retain_published or _FOR_EVER,
            "skipped": conf.outbox.retain_skipped or _FOR_EVER,
        }
        row: tuple[int, int | None, bool]
        [row] = statements.rows("prune_messages", {"after": self._after, **ages})
        return row

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.run_once()
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="message pruner")
            tidy_connections()
        connections.close_all()
