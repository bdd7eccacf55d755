"""Timeline of the database: the writes of one server. A promotion begins another, which may lack its end."""

from __future__ import annotations

import time

from django.db import Error, OperationalError

from salon_jobs.db.statements import run_raw

# Classes of errors of a server without a timeline to show, such as Aurora's.
_UNSUPPORTED = ("0A", "42")


class Timeline:
    """Timeline of one database, as a process has read it."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        # In order: when the answer arrived (monotonic seconds), and the timeline.
        self.readings: list[tuple[float, str]] = []

    def record(self) -> None:
        """Remember the timeline for runs that begin from now on: before the first claim, and after an outage.

        Raises database errors.
        """
        timeline = self._read()
        if timeline is not None and (not self.readings or self.readings[-1][1] != timeline):
            self.readings.append((time.monotonic(), timeline))

    def continues_since(self, instant: float) -> bool:
        """Return whether the server still writes the timeline of that instant (monotonic seconds), or none is known.

        Raises database errors.
        """
        known = next((timeline for at, timeline in reversed(self.readings) if at <= instant), None)
        return known is None or self._read() in (known, None)

    def _read(self) -> str | None:
        try:
            timeline: str = run_raw("timeline", {}, using=self._using)[0][0]
        except Error as error:
            sqlstate: str = getattr(error.__cause__, "sqlstate", None) or ""
            if isinstance(error, OperationalError) or not sqlstate.startswith(_UNSUPPORTED):
                raise
            return None
        return timeline
