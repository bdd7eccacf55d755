"""The run to which log records belong, and the last lines that it logged."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Protocol

from salon_jobs.core.error_report import storable, traceback_of
from salon_jobs.core.extensions import E, Extension
from salon_jobs.core.records import ClaimedJob
from salon_jobs.core.redaction import without_secrets
from salon_jobs.core.text import bounded, visible_lines

# The longest line of a record, in bytes. Longer ones, such as a handler's, lose the middles of their texts, first of
# the longest, so that the event and the job stay readable.
LONGEST_RECORD: Final = 1 << 16


class LoggedRun(Protocol):
    """The run to which log records belong."""

    @property
    def job(self) -> ClaimedJob: ...
    def extension(self, kind: type[E], /) -> E | None: ...
    def attach(self, extension: E, /) -> E: ...


# Set while a job runs; None outside.
current_run: ContextVar[LoggedRun | None] = ContextVar("salon_jobs_current_run", default=None)


class LoggedLines(Extension):
    """The last lines that one run logged, in up to 64 KiB of text."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > LONGEST_RECORD:
            self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """The lines for display: without secrets, and without characters that PostgreSQL cannot hold."""
        return storable(visible_lines(without_secrets("\n".join(self._lines))))[-LONGEST_RECORD:]


def _writes(handler: logging.Handler) -> bool:
    return not isinstance(handler, logging.NullHandler)


class JobLog(logging.Handler):
    """Handler that keeps the last lines of each run, and ignores records outside of runs."""

    def listen(self) -> None:
        """Handle each record once: at the root, or at a logger that does not propagate to it but has handlers.

        A logger that does not propagate and has no handler is silent on purpose.
        """
        if not logging.root.handlers and logging.lastResort is not None:
            logging.root.addHandler(logging.lastResort)  # Python uses it only if there is no other handler
        loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
        heard = [each for each in loggers if not each.propagate and any(map(_writes, each.handlers))]
        for each in (logging.root, *heard):
            each.addHandler(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return current_run.get() is not None

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # formatting a record may raise anything
            if (run := current_run.get()) is not None:
                lines = run.extension(LoggedLines) or run.attach(LoggedLines())
                at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
                lines.add(f"{at} {record.levelname} {record.name}: {bounded(record.getMessage())}")
                if record.exc_info and record.exc_info[1] is not None:
                    lines.add(traceback_of(record.exc_info[1]))
