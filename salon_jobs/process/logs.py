"""Logging to standard output, with the job to which each record belongs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TextIO

from salon_jobs.conf import has_logging
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import PASSING_FILTERS, logger
from salon_jobs.core.run_log import current_run
from salon_jobs.core.tracing import current_trace_id
from salon_jobs.process.log_lines import BOUND, LinesHandler, TerminalKind, as_json, as_text


class JobContext(logging.Filter):
    """Logging filter that adds the running job and the current trace to every record, in async handlers too.

    Attach it to a handler, so that it sees the records of all loggers. Existing attributes of a record are kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set ``task_name``, ``job_id``, ``store_id``, ``attempt`` and ``trace_id`` where known; always return True."""
        if (run := current_run.get()) is not None:
            job = run.job
            bound = (job.task, job.id, job.store_id, job.attempt)
            for name, value in zip(BOUND, bound, strict=False):
                record.__dict__.setdefault(name, value)
        if (trace_id := current_trace_id()) is not None:
            record.__dict__.setdefault("trace_id", trace_id)
        return True


PASSING_FILTERS.add(JobContext)


def _is_news(record: logging.LogRecord) -> bool:
    """Filter for a terminal: drop the content of the banner, and reports of idleness."""
    event: str | None = getattr(record, "event", None)
    if event == events.PROCESS_STOPPING:
        return bool(vars(record)["event_fields"]["running"])
    return event not in (events.WORKER_STARTING, events.HEALTH_LISTENING)


def is_coloured(stream: Any, options: Mapping[str, Any]) -> bool:
    """Return whether output there is coloured: on a terminal, unless a command's options or the environment refuse.

    Respects NO_COLOR, TERM=dumb, DJANGO_COLORS=nocolor, and Django's --no-color and --force-color.
    """
    env = os.environ
    refused = env.get("NO_COLOR") or env.get("TERM") == "dumb" or env.get("DJANGO_COLORS") == "nocolor"
    wanted = stream.isatty() and not refused and not options.get("no_color")
    return bool(options.get("force_color") or wanted)


def terminal_of(options: Mapping[str, Any]) -> TerminalKind | None:
    """Return the terminal at standard output; None if it is not a terminal, is closed, or does not exist."""
    out: TextIO | None = sys.stdout
    if out is None or out.closed or not out.isatty():
        return None
    return "coloured" if is_coloured(out, options) else "plain"


# Loggers of Django's tasks and of their backport. For each job they report its start and its success; our own record of
# its end covers both in one line.
_OF_TASKS: Final = ("django.tasks", "django_tasks")


def configure_logging(
    *, level: str | None = None, log_format: str | None = None, terminal: TerminalKind | None = None
) -> str | None:
    """Write the log to standard output and return the format; do nothing and return None if LOGGING has a handler.

    ``level`` (a name such as INFO) or ``log_format`` (json or text) replaces the handlers of LOGGING. Both default to
    ``SALON_JOBS["LOGGING"]``, whose format defaults to text on a terminal and json elsewhere. Text takes the form for a
    terminal on one, and on a given ``terminal``. Without LOGGING in the settings, also removes the handler with which
    Django would repeat records on the terminal. The logger of Django's tasks gets the level WARNING unless it has one.
    Raises ConfigurationError.
    """
    asked = level is not None or log_format is not None
    level = level or conf.logging.level
    own_terminal = terminal_of({})
    log_format = log_format or conf.logging.format or ("json" if own_terminal is None else "text")
    if logger.hasHandlers() and not asked:
        return None
    terminal = terminal or own_terminal
    handler = LinesHandler(sys.stdout, as_json if log_format == "json" else partial(as_text, terminal=terminal))
    if log_format != "json" and terminal is not None:
        handler.addFilter(_is_news)
    handler.addFilter(JobContext())
    handler.setLevel(level)
    if not has_logging():
        # Django writes with this handler to the terminal under DEBUG: ours shows those records.
        django = logging.getLogger("django")
        for each in [each for each in django.handlers if each.name == "console"]:
            django.removeHandler(each)
    # Warnings below the handler's level still reach other listeners of the loggers, such as Sentry.
    logging.basicConfig(level=min(handler.level, logging.WARNING), handlers=[handler], force=True)
    for name in _OF_TASKS:
        if (tasks := logging.getLogger(name)).level == logging.NOTSET:
            tasks.setLevel(logging.WARNING)
    return log_format
