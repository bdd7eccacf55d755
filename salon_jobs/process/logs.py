"""Logging to standard output, as JSON lines (``core.events``) or text, with the job that each record belongs to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

from django.utils.termcolors import colorize

from salon_jobs.conf import has_logging
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import traceback_of
from salon_jobs.core.events import BOUND, LONGEST_RECORD, JsonLinesHandler, LinesHandler, current_run, logger
from salon_jobs.core.records import PARTITIONS
from salon_jobs.core.text import bounded, visible
from salon_jobs.core.tracing import current_trace_id
from salon_jobs.core.units import duration, with_noun


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


# In characters, each of which takes up to four bytes.
_LONGEST_TEXT: Final = LONGEST_RECORD // 4


class TextFormatter(logging.Formatter):
    """Formatter that writes one line of text per record: time, level, logger, event, and the fields with a value.

    A message stays on its line and tracebacks are indented, so that no record can imitate another.
    """

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_text:  # another handler's
            record = copy(record)
            record.exc_text = None
        return bounded(super().format(record), _LONGEST_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class names it
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
        return visible(f"{at} {record.levelname:<7} {record.name} {_text(record)}")

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        shown = "" if ei[1] is None else traceback_of(ei[1], ei[2])
        return "\n".join(f"  {visible(line)}" for line in shown.split("\n"))


def _text(record: logging.LogRecord) -> str:
    fields: dict[str, Any] = getattr(record, "event_fields", {})
    head = getattr(record, "event", None) or record.message
    bound = {name: record.__dict__[name] for name in BOUND if name in record.__dict__ and name not in fields}
    return " ".join([head, *(f"{name}={value}" for name, value in (fields | bound).items() if _has_value(value))])


def _has_value(value: object) -> bool:
    return value is not None and value != ""


# Fields that the line shows anyway, or that `salon_jobs show` shows.
_ERRORS: Final = ("error", "detail")
_LEFT_OUT: Final = frozenset({*BOUND, *_ERRORS, "error_class", "code", "duration_ms", "jobs"})
_USUAL: Final = {"queue": "default", "clean": True}


class TerminalFormatter(TextFormatter):
    """Formatter for a developer's terminal: short lines in colours, with an error's text on a line of its own."""

    def __init__(self, terminal: TerminalKind) -> None:
        super().__init__()
        self._is_coloured = terminal == "coloured"

    def _paint(self, text: str, colour: str) -> str:
        if not (text and colour and self._is_coloured):
            return text
        return colorize(text, opts=("bold",)) if colour == "bold" else colorize(text, fg=colour)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as above
        colour = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        at = f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S}"
        event: str | None = getattr(record, "event", None)
        fields: dict[str, Any] = getattr(record, "event_fields", {})
        if event is None:
            parts = [self._paint(visible(f"{record.name}: {record.message}"), colour), *_of_run(vars(record))]
            return f"{at} {' '.join(parts)}"
        if sentence := _sentence(event, fields):
            return f"{at} {self._paint(visible(sentence), colour or 'bold')}"
        shown = {name: value for name, value in fields.items() if name not in _LEFT_OUT and _USUAL.get(name) != value}
        parts = [
            self._paint(visible(event), colour or ("green" if event == events.JOB_SUCCEEDED else "cyan")),
            *_of_run({**vars(record), **fields}),
            *(visible(f"{name}={value}") for name, value in shown.items() if _has_value(value)),
        ]
        lines = [f"{at} {' '.join(parts)}"]
        if error := _error(fields):
            lines.append(self._paint(f"         {visible(error)}", colour))
        return "\n".join(lines)


def _of_run(fields: Mapping[str, Any]) -> list[str]:
    """Return task, job, and what is unusual about its run; nothing for a record outside a run."""
    if "job_id" not in fields:
        return []
    parts = [f"{fields.get('task_name', 'job')} {fields['job_id']}"]
    if (attempt := fields.get("attempt", 1)) != 1:
        parts.append(f"attempt {attempt}")
    if (took_ms := fields.get("duration_ms")) is not None:
        parts.append(f"in {duration(took_ms / 1000)}")
    if store := fields.get("store_id"):
        parts.append(f"store {str(store)[:8]}…")
    return [visible(part) for part in parts]


def _error(fields: Mapping[str, Any]) -> str:
    """Return the class and text of the error, as far as they are known."""
    name = str(fields.get("error_class") or fields.get("code") or "").rpartition(".")[2]
    text = next((str(fields[each]) for each in _ERRORS if fields.get(each)), "")
    return ": ".join(part for part in (name, text) if part)


def _sentence(event: str, fields: Mapping[str, Any]) -> str:
    """Return the event as a sentence, where that is clearer than its fields."""
    match event:
        case events.PROCESS_STARTED:
            return f"Started: {fields['kind']}, pid {fields['pid']}."
        case events.PROCESS_STOPPED if fields["clean"]:
            return f"Stopped: {fields['kind']}."
        case events.WORKER_STOPPING if not fields["running"]:
            return "Stopping: no job is running."
        case events.WORKER_STOPPING:
            jobs = with_noun(fields["running"], "job")
            return f"Stopping: waiting for {jobs}; press Ctrl-C again to stop at once."
        case events.PROCESS_STOPPING if "jobs" in fields:
            return f"Still running: {fields['jobs']}."
        case events.PROCESS_STOPPING:
            return f"Stopping: {with_noun(fields['running'], 'message')} being sent."
        case events.PARTITIONS_OWNED:
            return f"Sends {len(fields['partitions'])} of {PARTITIONS} partitions; relays: {fields['relays']}."
        case events.HEALTH_NOT_LISTENING:
            return f"No health endpoint: {fields['error']}."
        case events.WAITING:
            return f"Waiting for the database: {fields['detail']} ({fields['code']})"
        case _:
            return ""


class _NewsOnly(logging.Filter):
    """Logging filter for a terminal: drops what the banner says, and reports that nothing runs."""

    def filter(self, record: logging.LogRecord) -> bool:
        event: str | None = getattr(record, "event", None)
        fields: dict[str, Any] = getattr(record, "event_fields", {})
        if event == events.PROCESS_STOPPING:
            return bool(fields["running"])
        return event not in (events.WORKER_STARTING, events.HEALTH_LISTENING)


# What a terminal shows.
TerminalKind: TypeAlias = Literal["plain", "coloured"]


def is_coloured(stream: Any, options: Mapping[str, Any]) -> bool:
    """Return whether output there is coloured: on a terminal, unless a command's options or the environment refuse.

    Respects NO_COLOR, TERM=dumb, DJANGO_COLORS=nocolor, and Django's --no-color and --force-color.
    """
    env = os.environ
    refused = env.get("NO_COLOR") or env.get("TERM") == "dumb" or env.get("DJANGO_COLORS") == "nocolor"
    wanted = stream.isatty() and not refused and not options.get("no_color")
    return bool(options.get("force_color") or wanted)


def terminal_of(options: Mapping[str, Any]) -> TerminalKind | None:
    """Return what the terminal at standard output shows; None if that is none, is closed, or does not exist."""
    out: TextIO | None = sys.stdout
    if out is None or out.closed or not out.isatty():
        return None
    return "coloured" if is_coloured(out, options) else "plain"


# Loggers of Django's tasks and of their backport. For each job they say that it started and that it succeeded, which
# our own record of its end does in one line.
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
    handler: logging.Handler
    if log_format == "json":
        handler = JsonLinesHandler(sys.stdout)
    else:
        handler = LinesHandler(sys.stdout)
        handler.setFormatter(TextFormatter() if terminal is None else TerminalFormatter(terminal))
        if terminal is not None:
            handler.addFilter(_NewsOnly())
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
