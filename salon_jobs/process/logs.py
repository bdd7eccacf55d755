"""Logging to standard output, as JSON lines or text, with the job that each record belongs to."""

from __future__ import annotations

import logging
import sys
from typing import Any

from salon_jobs.conf import settings as conf
from salon_jobs.core.events import BOUND, JsonLinesHandler, current_run, logger
from salon_jobs.core.tracing import current_trace_id


class JobContext(logging.Filter):
    """Logging filter that adds the running job and the current trace to every record, in async handlers too.

    Attach it to a handler, so that it sees the records of all loggers. Existing attributes of a record are kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set ``task_name``, ``job_id``, ``store_id``, ``attempt`` and ``trace_id`` where known; always return True."""
        job = current_run.get()
        if job is not None:
            bound = (job.task, job.id, job.store_id, job.attempt)
            for name, value in zip(BOUND, bound, strict=False):
                record.__dict__.setdefault(name, value)
        if (trace_id := current_trace_id()) is not None:
            record.__dict__.setdefault("trace_id", trace_id)
        return True


class TextFormatter(logging.Formatter):
    """Formatter that writes one line of text per record, followed by the bound fields.

    A message cannot imitate another record: it stays on its line, and tracebacks are indented.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class names it
        logged = getattr(record, "event_fields", {})
        bound = [f"{name}={record.__dict__[name]}" for name in BOUND if name in record.__dict__ and name not in logged]
        return _visible(" ".join([super().formatMessage(record), *bound]))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return "\n".join(f"  {_visible(line)}" for line in super().formatException(ei).splitlines())


def _visible(text: str) -> str:
    """Escape characters that control a terminal or end a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def configure_logging(*, level: str | None = None, log_format: str | None = None) -> str | None:
    """Write the log to standard output, unless the project's LOGGING has a handler for it; return the format, or None.

    ``level`` is a name such as INFO, ``log_format`` is json or text: given, they replace the root's handlers. Omitted,
    they come from ``SALON_JOBS["LOGGING"]``, whose format is text on a terminal and json otherwise unless set. Raises
    ConfigurationError.
    """
    asked = level is not None or log_format is not None
    level = level or conf.logging.level
    log_format = log_format or conf.logging.format or ("text" if sys.stdout.isatty() else "json")
    if logger.hasHandlers() and not asked:
        return None
    handler: logging.Handler
    if log_format == "json":
        handler = JsonLinesHandler(sys.stdout)
    else:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(TextFormatter())
    handler.addFilter(JobContext())
    handler.setLevel(level)
    # Warnings below the handler's level still reach other listeners of the loggers, such as Sentry.
    logging.basicConfig(level=min(handler.level, logging.WARNING), handlers=[handler], force=True)
    return log_format
