"""Loops that mark published messages and prune old ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from salon_jobs.brokers.publisher import OutgoingMessage
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db import statements
from salon_jobs.outbox import queries
from salon_jobs.outbox.backlog import Backlog
from salon_jobs.process.loop import Loop

_MOST: Final = 5000
# On an idle connection, a lost network shows only after the next statement has waited for long.
_PING_EVERY_S: Final = 5.0


@dataclass(slots=True)
class MarkBatch:
    """The marks of one batch to write: published messages, and skipped ones with their reasons."""

    backlog: Backlog
    published: Sequence[OutgoingMessage]
    skipped: Sequence[tuple[OutgoingMessage, str]] = ()


class Marker(Loop):
    """Loop that marks messages, retrying each write until it succeeds: a message without its mark is sent again.

    ``on_marked`` is called after each write, because there is room for more messages.
    """

    def __init__(self, on_marked: Callable[[], None], *, using: str) -> None:
        super().__init__("marker", using=using)
        self._on_marked = on_marked
        # Other threads append; written marks are removed afterwards.
        self._marks: list[MarkBatch] = []
        self._give_up_at = float("inf")
        self.published = self.skipped = 0

    def put(self, marks: MarkBatch) -> None:
        self._marks.append(marks)
        self.wake()

    def poll(self) -> float:
        """Write the marks; when there are none, query the database for a sign of life."""
        if self._marks:
            self._write_all()
        else:
            statements.ping(using=self.using)
        return _PING_EVERY_S

    def finish(self) -> bool:
        """Write the remaining marks, for at most the time given to ``stop_within``."""

        def give_up(wait_s: float) -> bool:
            left_s = self._give_up_at - time.monotonic()
            time.sleep(max(0.0, min(wait_s, left_s)))
            return left_s <= 0

        written = self.outage.wait_out(self._write_all, give_up)
        if not written:
            unmarked = sum(len(marks.published) for marks in self._marks)
            log_event(logging.ERROR, events.RELAY_UNMARKED, messages=unmarked)
        return written

    def stop_within(self, grace_s: float) -> bool:
        """Write the remaining marks, for at most ``grace_s``; return whether all were written."""
        self._give_up_at = time.monotonic() + grace_s
        self.stop()
        return self.join(grace_s + 1) and self.idle

    @property
    def idle(self) -> bool:
        return not self._marks

    def _write_all(self) -> None:
        while self._marks:
            count = total = 0
            while count < len(self._marks) and (not count or total < _MOST):
                total += len(self._marks[count].published)
                count += 1
            batch = self._marks[:count]
            if published := [message for marks in batch for message in marks.published]:
                queries.mark_published(published, using=self.using)
            if skipped := [each for marks in batch for each in marks.skipped]:
                queries.mark_skipped(skipped, using=self.using)
            for marks in batch:
                marks.backlog.marked([*marks.published, *(message for message, _ in marks.skipped)])
            self.published += len(published)
            self.skipped += len(skipped)
            self._on_marked()
            del self._marks[:count]


_EVERY_S: Final = 60.0
_ROUND_S: Final = 0.5
_FROM_THE_START_S: Final = 3600.0
# Longer than anything is kept, so nothing is deleted.
_FOR_EVER: Final = timedelta(days=365_000)
_SKIPPED_KEPT: Final = timedelta(days=30)


class MessagePruner(Loop):
    """Loop that deletes old messages, walking the table by ID; several may run at once.

    A round ends after half a second, or where messages are too young. The walk restarts every hour, for messages that
    were sent late (after an operator's retry, for example).
    """

    def __init__(self, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("message pruner", using=using, first_poll_in_s=_EVERY_S, clock=clock)
        self._after = 0
        self._began = clock()

    def poll(self) -> float:
        self.run_once()
        return _EVERY_S

    def run_once(self) -> int:
        """Delete for at most half a second and log the count; return how many. Role: worker, autocommit.

        Raises database errors; what was deleted before stays deleted.
        """
        end = self._clock() + _ROUND_S
        if self._clock() - self._began >= _FROM_THE_START_S:
            self._after, self._began = 0, self._clock()
        retentions = {
            "published": conf.outbox.retain_published or _FOR_EVER,
            "skipped": max(conf.outbox.retain_published or _FOR_EVER, _SKIPPED_KEPT),
        }
        total = 0
        row: tuple[int, int | None, bool]
        while True:
            [row] = statements.rows("prune_messages", {"after": self._after, **retentions}, using=self.using)
            deleted, after, young = row
            total += deleted
            if after is None or not young:
                self._after = after or 0
            if after is None or young or self._clock() >= end:
                break
        if total:
            log_event(logging.INFO, events.PRUNED, messages=total)
        return total
