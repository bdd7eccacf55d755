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
    """Holds the ARN of each topic. Threads share it; two of them reading at once do no harm.

    ``read`` returns the ARNs of all topics, and raises what the SDK does. ``refetch_s`` None: not read again for its
    age.
    """

    def __init__(self, read: Callable[[], Iterable[str]], *, refetch_s: float | None, clock: Callable[[], float]):
        self._read = read
        self._refetch_s = refetch_s
        self._clock = clock
        self._arns: dict[str, str] | None = None
        self._looked_for: dict[str, float] = {}
        self._read_at = 0.0
        self._tried_at = 0.0

    def find(self, name: str) -> str | None:
        """Return the ARN of a topic; None: it is not there, or was not when looked for within the last minute.

        Raises what the SDK does when that can not be found out.
        """
        now = self._clock()
        if (
            self._arns is not None
            and self._refetch_s is not None
            and now - self._read_at >= self._refetch_s
            and now - self._tried_at >= AGAIN_S
        ):
            self.refresh()
        arn = (self._arns or {}).get(name)
        if arn is None and now - self._looked_for.get(name, -AGAIN_S) >= AGAIN_S:
            arn = self._fetch(now).get(name)
            self._looked_for[name] = now
        return arn

    def discover(self) -> None:
        """Read the topics, unless they are known: each destination of a relay asks for it at its first message."""
        if self._arns is None:
            self.refresh()

    def refresh(self) -> None:
        """Read the topics again. When that fails those known stay, and it is logged."""
        try:
            self._fetch(self._clock())
        except aws.ERRORS as error:
            log_event(logging.WARNING, log_events.SNS_TOPICS_NOT_READ, error=str(error))

    def forget(self, name: str) -> None:
        """Take a topic off the list: SNS says that it is not there any more. It is looked for again in a minute."""
        self._looked_for[name] = self._clock()
        self._arns = {other: arn for other, arn in (self._arns or {}).items() if other != name}

    def _fetch(self, now: float) -> dict[str, str]:
        self._tried_at = now
        known = {arn.rpartition(":")[2]: arn for arn in self._read()}
        self._arns, self._read_at = known, now
        return known
