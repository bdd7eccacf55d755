"""The timeline of the database: what one server wrote, until a promotion begins another that may lack the end of it."""

from __future__ import annotations

import time

from django.db import Error, OperationalError

from salon_jobs.db.statements import hot

# What the process has read, in order: when the answer was there (monotonic seconds), and the timeline.
_readings: list[tuple[float, str]] = []
# Classes of errors by which a server says that it has no timeline to show, such as Aurora's.
_UNSUPPORTED = ("0A", "42")


def record_timeline(*, using: str) -> None:
    """Remember the timeline for runs that begin from now on. A worker calls it before it claims, and after an outage.

    Raises database errors.
    """
    timeline = _read(using)
    if timeline is not None and (not _readings or _readings[-1][1] != timeline):
        _readings.append((time.monotonic(), timeline))


def is_same_timeline(since: float, *, using: str) -> bool:
    """Return whether the server still writes the timeline of that instant (monotonic seconds), or none is known.

    Raises database errors.
    """
    known = next((timeline for at, timeline in reversed(_readings) if at <= since), None)
    return known is None or _read(using) in (known, None)


def _read(using: str) -> str | None:
    try:
        timeline: str = hot("timeline", {}, using=using)[0][0]
    except Error as error:
        sqlstate: str = getattr(error.__cause__, "sqlstate", None) or ""
        if isinstance(error, OperationalError) or not sqlstate.startswith(_UNSUPPORTED):
            raise
        return None
    return timeline
