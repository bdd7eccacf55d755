"""The lines of the log, in one of two layouts: JSON for programs, or text for people."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TextIO, TypeAlias, TypeVar
from uuid import UUID

from django.utils.termcolors import colorize
from msgspec.json import Encoder

from salon_jobs.core import events
from salon_jobs.core.error_report import traceback_of
from salon_jobs.core.events import PASSING_FILTERS, log_event, logger
from salon_jobs.core.records import PARTITIONS
from salon_jobs.core.run_log import LONGEST_RECORD, JobLog
from salon_jobs.core.text import bounded, visible, visible_json
from salon_jobs.core.units import duration, with_noun

R = TypeVar("R")
# Bound to every record of a run, in addition to the record's own fields.
BOUND: Final = ("task_name", "job_id", "store_id", "attempt", "trace_id")
# In characters, each of which takes up to four bytes.
_LONGEST_TEXT: Final = LONGEST_RECORD // 4


Layout: TypeAlias = Callable[[logging.LogRecord], str]
# The stream and colours of a terminal.
TerminalKind: TypeAlias = Literal["plain", "coloured"]


class LinesHandler(logging.StreamHandler[TextIO]):
    """Handler of a stream that may be closed or full: it counts the records it cannot write, and raises nothing."""

    def __init__(self, stream: TextIO, layout: Layout) -> None:
        super().__init__(stream)
        self.layout = layout

    def format(self, record: logging.LogRecord) -> str:
        return self.layout(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        logger.lost += 1
        with suppress(Exception):  # standard error may be closed as well
            super().handleError(record)

    def write_batch(self, level: int, event: str, batch: Iterable[dict[str, Any]]) -> None:
        """Write one line of JSON for each of the fields in ``batch``, with one timestamp and in one write.

        Like ``emit``, it reports errors on standard error and raises none.
        """
        try:
            head = {**_head(time.time(), level, logger.name), "event": event}
            lines = [_of_store(head | fields) for fields in batch]
            text = _json_lines(lines)
            with self.lock or nullcontext():
                self.stream.write(text)
                self.flush()
        except Exception:  # a logging error must not reach the caller
            self.handleError(logging.LogRecord(logger.name, level, "", 0, event, None, None))


def log_batch(level: int, event: str, records: Iterable[R], *, fields: Callable[[R], dict[str, Any]]) -> None:
    """Log ``event`` once for each of ``records``, in a single write where our handler of JSON is the only listener.

    ``fields`` returns the fields of a record. A filter of the host sees each record.
    """
    if not logger.isEnabledFor(level):
        return
    handlers = [each for each in logging.getLogger().handlers if not isinstance(each, JobLog)]
    own = logger.logger
    writer = handlers[0] if len(handlers) == 1 and own.propagate and not own.handlers else None
    if isinstance(writer, LinesHandler) and writer.layout is as_json and level >= writer.level:
        filters = {type(each) for each in (*own.filters, *writer.filters)}
        if filters <= PASSING_FILTERS:
            writer.write_batch(level, event, map(fields, records))
            return
    for record in records:
        log_event(level, event, **fields(record))


def _event_of(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Return the event of a record of ours and its fields; "" and none of any other record."""
    own = vars(record)
    return own.get("event") or "", own.get("event_fields") or {}


def _bound_to(record: logging.LogRecord) -> dict[str, Any]:
    own = vars(record)
    return {str(name): own[name] for name in BOUND if name in own}


def _message_of(record: logging.LogRecord) -> str:
    return bounded(record.getMessage(), LONGEST_RECORD)


def _traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback and the stack that a record has, "" without either."""
    text = ""
    if record.exc_info and record.exc_info[1] is not None:
        # In a foreign record, another handler's formatter may have left its text of the error.
        text = (_event_of(record)[0] and record.exc_text) or traceback_of(record.exc_info[1], record.exc_info[2])
    return "\n".join(filter(None, (text, record.stack_info)))


# For programs


def as_json(record: logging.LogRecord) -> str:
    """Lay a record out as JSON: time (UTC), level, logger, job, event or message, fields, traceback."""
    event, fields = _event_of(record)
    line = _head(record.created, record.levelno, record.name) | _bound_to(record)
    line |= {"event": event, **fields} if event else {"message": _message_of(record)}
    if traceback := _traceback_of(record):
        line["traceback"] = traceback
    return _json_line(_of_store(line))


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


def _json_lines(lines: Sequence[dict[str, Any]]) -> str:
    """Lay out all lines at once, or one by one if any is long or cannot be encoded."""
    with suppress(ValueError):
        text = _as_text(_ENCODER.encode_lines(lines))
        if len(text) <= _LONGEST_TEXT or max(map(len, text.split("\n"))) <= _LONGEST_TEXT:
            return text
    return "".join(f"{_json_line(line)}\n" for line in lines)


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


def as_text(record: logging.LogRecord, *, terminal: TerminalKind | None = None) -> str:
    """Lay a record out as text: time, level, logger, event or message, job, and the fields with a value.

    On a ``terminal`` it is short and coloured, with an error's text on the next line. A message stays on its line and
    tracebacks are indented, so that no record can imitate another.
    """
    lines = [_all_of(record) if terminal is None else _news_of(record, partial(_paint, terminal))]
    if traceback := _traceback_of(record):
        lines += [f"  {visible(line)}" for line in traceback.split("\n")]
    return bounded("\n".join(lines), _LONGEST_TEXT)


def _all_of(record: logging.LogRecord) -> str:
    event, fields = _event_of(record)
    at = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
    head = f"{at} {record.levelname:<7} {record.name} {event or _message_of(record)}"
    return visible(" ".join([head, *_pairs({**fields, **_bound_to(record), **fields})]))


def _pairs(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items() if value is not None and value != ""]


# Fields that the line shows anyway, or that `salon_jobs show` shows.
_ERRORS: Final = ("error", "detail")
_LEFT_OUT: Final = frozenset({*BOUND, *_ERRORS, "error_class", "code", "duration_ms", "jobs"})
_USUAL: Final = {"queue": "default", "clean": True}


def _paint(terminal: TerminalKind, text: str, colour: str) -> str:
    if not (text and colour and terminal == "coloured"):
        return text
    return colorize(text, opts=("bold",)) if colour == "bold" else colorize(text, fg=colour)


def _news_of(record: logging.LogRecord, paint: Callable[[str, str], str]) -> str:
    """Return the short form of a record for a developer at the terminal."""
    event, fields = _event_of(record)
    known = _bound_to(record) | fields
    colour = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
    at = f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S}"
    if not event:
        return " ".join([at, paint(visible(f"{record.name}: {_message_of(record)}"), colour), *_of_run(known)])
    if sentence := _sentence(event, fields):
        return f"{at} {paint(visible(sentence), colour or 'bold')}"
    shown = {name: value for name, value in fields.items() if name not in _LEFT_OUT and _USUAL.get(name) != value}
    colour_of_event = colour or ("green" if event == events.JOB_SUCCEEDED else "cyan")
    text = " ".join([at, paint(visible(event), colour_of_event), *_of_run(known), *map(visible, _pairs(shown))])
    if error := _error(fields):
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
