"""Knows the topics that are there, by their names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.publishers import aws

# How long after one reading the next may follow for the sake of the same absent topic, or after a reading that failed.
AGAIN_S: Final = 60.0


class Topics:
    """ARNs of the topics by name. Thread-safe; two threads reading at once do no harm.

    ``read`` returns the ARNs of all topics, and raises what the SDK does. ``refetch_s`` None: never read again for
    their age.
    """

    def __init__(self, read: Callable[[], Iterable[str]], *, refetch_s: float | None, clock: Callable[[], float]):
        self._read = read
        self._refetch_s = refetch_s
        self._clock = clock
        self._arns: dict[str, str] | None = None
        self._looked_for: dict[str, float] = {}
        self._due_at: float | None = float("-inf")
        self._failing = False

    def find(self, name: str) -> str | None:
        """Return the ARN of a topic; None: it is not there, or was not when looked for within the last minute.

        Raises what the SDK does when that can not be found out.
        """
        now = self._clock()
        arn = (self._arns or {}).get(name)
        if arn is None and now - self._looked_for.get(name, -AGAIN_S) >= AGAIN_S:
            arn = self._fetch().get(name)
            self._looked_for[name] = now
        return arn

    def discover(self) -> None:
        """Read the topics unless they are known. When that fails, log it."""
        if self._arns is None:
            self._refresh()

    def refresh_when_due(self) -> float | None:
        """Read the topics if that is due; return in how many seconds it is due next, None for never.

        When that fails the known topics stay, and it is due again in a minute. Only the first of several failures in
        a row is logged.
        """
        if self._due_at is not None and self._clock() >= self._due_at:
            self._refresh()
        return None if self._due_at is None else max(0.0, self._due_at - self._clock())

    def forget(self, name: str) -> None:
        """Take a topic off the list: SNS says that it is not there any more. It is looked for again in a minute."""
        self._looked_for[name] = self._clock()
        self._arns = {other: arn for other, arn in (self._arns or {}).items() if other != name}

    def _refresh(self) -> None:
        try:
            self._fetch()
        except aws.ERRORS as error:
            self._due_at = self._clock() + AGAIN_S
            if not self._failing:
                log_event(logging.WARNING, log_events.SNS_TOPICS_NOT_READ, error=str(error))
            self._failing = True

    def _fetch(self) -> dict[str, str]:
        known = {arn.rpartition(":")[2]: arn for arn in self._read()}
        self._arns, self._failing = known, False
        self._due_at = None if self._refetch_s is None else self._clock() + self._refetch_s
        log_event(logging.INFO, log_events.SNS_TOPICS_READ, topics=len(known))
        return known
