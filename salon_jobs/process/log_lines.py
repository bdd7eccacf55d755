"""The lines of the log: one formatter, with a layout for programs (JSON) and one for people (text)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias, TypeVar
from uuid import UUID

from django.utils.termcolors import colorize
from msgspec.json import Encoder

from salon_jobs.core import events
from salon_jobs.core.error_report import traceback_of
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.records import PARTITIONS
from salon_jobs.core.run_log import LONGEST_RECORD, JobLog
from salon_jobs.core.text import bounded, visible, visible_json
from salon_jobs.core.units import duration, with_noun

R = TypeVar("R")
# Bound to every record of a run, in addition to the record's own fields.
BOUND: Final = ("task_name", "job_id", "store_id", "attempt", "trace_id")
# In characters, each of which takes up to four bytes.
_LONGEST_TEXT: Final = LONGEST_RECORD // 4


class LogLine(NamedTuple):
    """A record as layouts see it: ``event`` with its ``fields``, or a ``message`` and no event."""

    created: float
    level: int
    logger: str
    event: str
    message: str
    fields: Mapping[str, Any]
    bound: Mapping[str, Any]
    traceback: str


Layout: TypeAlias = Callable[[LogLine], str]
# The stream and colours of a terminal.
TerminalKind: TypeAlias = Literal["plain", "coloured"]


class LogFormatter(logging.Formatter):
    """Formatter of our events and of other records, in one layout."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def format(self, record: logging.LogRecord) -> str:
        own = vars(record)
        event: str = own.get("event") or ""
        message = "" if event else bounded(record.getMessage(), LONGEST_RECORD)
        # In a foreign record, another handler's formatter may have left its text of the error.
        traceback = (event and record.exc_text) or ""
        if not traceback and record.exc_info and record.exc_info[1] is not None:
            traceback = traceback_of(record.exc_info[1], record.exc_info[2])
        if record.stack_info:
            traceback = f"{traceback}\n{record.stack_info}".lstrip("\n")
        bound: dict[str, Any] = {name: own[name] for name in BOUND if name in own}
        fields: dict[str, Any] = own.get("event_fields", {})
        return self.layout(
            LogLine(record.created, record.levelno, record.name, event, message, fields, bound, traceback)
        )


class LinesHandler(logging.StreamHandler[TextIO]):
    """Handler of a stream that may be closed or full: it counts the records it cannot write, and raises nothing."""

    def __init__(self, stream: TextIO, layout: Layout) -> None:
        super().__init__(stream)
        self.setFormatter(LogFormatter(layout))
        self.layout = layout

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        logger.lost += 1
        with suppress(Exception):  # standard error may be closed as well
            super().handleError(record)

    def write_batch(self, level: int, event: str, batch: list[dict[str, Any]]) -> None:
        """Write one line of JSON for each of the fields in ``batch``, with one timestamp and in one write.

        Like ``emit``, it reports errors on standard error and raises none.
        """
        try:
            head = {**_head(time.time(), level, logger.name), "event": event}
            lines = [_of_store(head | fields) for fields in batch]
            try:
                text = _as_text(_ENCODER.encode_lines(lines))
            except ValueError:
                text = "".join(f"{_json_line(line)}\n" for line in lines)
            with self.lock or nullcontext():
                self.stream.write(text)
                self.flush()
        except Exception:  # a logging error must not reach the caller
            self.handleError(logging.LogRecord(logger.name, level, "", 0, event, None, None))


def log_batch(level: int, event: str, records: Iterable[R], *, fields: Callable[[R], dict[str, Any]]) -> None:
    """Log ``event`` once for each of ``records``, in a single write where our handler of JSON is the only listener.

    ``fields`` returns the fields of a record.
    """
    if not logger.isEnabledFor(level):
        return
    handlers = [each for each in logging.getLogger().handlers if not isinstance(each, JobLog)]
    own = logger.logger
    writer = handlers[0] if len(handlers) == 1 and own.propagate and not own.handlers else None
    if isinstance(writer, LinesHandler) and writer.layout is as_json and level >= writer.level:
        writer.write_batch(level, event, [fields(record) for record in records])
        return
    for record in records:
        log_event(level, event, **fields(record))


# For programs


def as_json(line: LogLine) -> str:
    """Lay a record out as JSON: time (UTC), level, logger, job, event or message, fields, traceback."""
    said = {"event": line.event} if line.event else {"message": line.message}
    laid = {**_head(line.created, line.level, line.logger), **line.bound, **said, **line.fields}
    if line.traceback:
        laid["traceback"] = line.traceback
    return _json_line(_of_store(laid))


def _head(created: float, level: int, name: str) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
        "level": logging.getLevelName(level).lower(),
        "logger": name,
    }


def _of_store(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out the field ``store_id`` of a line without a store: many projects have no stores at all."""
    if "store_id" in line and line["store_id"] is None:
        del line["store_id"]
    return line


_ENCODER: Final = Encoder(enc_hook=str)


def _json_line(line: dict[str, Any]) -> str:
    text = _as_json(line)
    # A character takes up to four bytes; only a long line is measured.
    if len(text) <= _LONGEST_TEXT or len(text.encode()) <= LONGEST_RECORD:
        return text
    for most in (10_000, 3_000, 1_000, 100):
        shortened = {bounded(name, most): _shortened(value, most) for name, value in line.items()}
        if len((text := _as_json(shortened)).encode()) <= LONGEST_RECORD:
            return text
    return _as_json({name: shortened[name] for name in _KEPT if name in shortened})


_KEPT: Final = ("time", "level", "logger", *BOUND, "event", "message", "code", "error_class", "error")


def _shortened(value: Any, most: int) -> Any:
    if value is None or isinstance(value, float | UUID) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return bounded(value if isinstance(value, str) else _as_json(value), most)


def _as_json(line: Any) -> str:
    try:
        return _as_text(_ENCODER.encode(line))
    except ValueError:
        # A lone surrogate (from undecodable bytes) would break the stream that the line is written to.
        return visible_json(json.dumps(line, default=str, ensure_ascii=False))


def _as_text(lines: bytes) -> str:
    # Nearly all lines are plain ASCII, which is quick to check.
    return lines.decode() if lines.isascii() and b"\x7f" not in lines else visible_json(lines.decode())


# For people


def as_text(line: LogLine, *, terminal: TerminalKind | None = None) -> str:
    """Lay a record out as text: time, level, logger, event or message, job, and the fields with a value.

    On a ``terminal`` it is short and coloured, with an error's text on the next line. A message stays on its line and
    tracebacks are indented, so that no record can imitate another.
    """
    text = _all_of(line) if terminal is None else _news_of(line, partial(_paint, is_coloured=terminal == "coloured"))
    trace = [f"  {visible(each)}" for each in line.traceback.split("\n")] if line.traceback else []
    return bounded("\n".join([text, *trace]), _LONGEST_TEXT)


def _all_of(line: LogLine) -> str:
    at = datetime.fromtimestamp(line.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
    level = logging.getLevelName(line.level)
    shown = {**line.fields, **line.bound, **line.fields}
    return visible(" ".join([f"{at} {level:<7} {line.logger} {line.event or line.message}", *_pairs(shown)]))


def _pairs(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items() if value is not None and value != ""]


# Fields that the line shows anyway, or that `salon_jobs show` shows.
_ERRORS: Final = ("error", "detail")
_LEFT_OUT: Final = frozenset({*BOUND, *_ERRORS, "error_class", "code", "duration_ms", "jobs"})
_USUAL: Final = {"queue": "default", "clean": True}


def _paint(text: str, colour: str, *, is_coloured: bool) -> str:
    if not (text and colour and is_coloured):
        return text
    return colorize(text, opts=("bold",)) if colour == "bold" else colorize(text, fg=colour)


def _news_of(line: LogLine, paint: Callable[[str, str], str]) -> str:
    """Return the short form of a record for a developer at the terminal."""
    colour = "red" if line.level >= logging.ERROR else "yellow" if line.level >= logging.WARNING else ""
    at = f"{datetime.fromtimestamp(line.created).astimezone():%H:%M:%S}"
    known = {**line.bound, **line.fields}
    if not line.event:
        said = paint(visible(f"{line.logger}: {line.message}"), colour)
        return " ".join([at, said, *_of_run(known)])
    if sentence := _sentence(line.event, line.fields):
        return f"{at} {paint(visible(sentence), colour or 'bold')}"
    shown = {name: value for name, value in line.fields.items() if name not in _LEFT_OUT and _USUAL.get(name) != value}
    event = paint(visible(line.event), colour or ("green" if line.event == events.JOB_SUCCEEDED else "cyan"))
    text = " ".join([at, event, *_of_run(known), *map(visible, _pairs(shown))])
    if error := _error(line.fields):
        text += "\n" + paint(f"         {visible(error)}", colour)
    return text


def _of_run(fields: Mapping[str, Any]) -> list[str]:
    """Return task, job, and anything unusual about its run; nothing for a record outside a run."""
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
