"""Tables, JSON, questions, reports and error lines that commands print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from django.db.models import QuerySet
from django.utils import timezone
from psycopg import Error as PsycopgError
from psycopg.errors import UndefinedTable

from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SchemaMissing
from salon_jobs.core.records import ActionResult, IdT
from salon_jobs.core.terminal import Painted, Screen
from salon_jobs.core.text import visible, visible_lines
from salon_jobs.core.units import distance, with_noun
from salon_jobs.db.read_only import ServerReadOnly, failed_read_only

_BATCH: Final = 1000
_DETAIL_INDENT: Final = 4
_DETAIL_LINES: Final = 2


def table(rows: Sequence[Sequence[object]], screen: Screen | None = None) -> str:
    """Format a table with a header row: numbers to the right, text to the left. Empty cells get a dash."""
    head, *lines = [[_cell(value) for value in row] for row in rows]
    return "\n".join((screen or Screen()).table([each.text for each in head], lines))


def _cell(value: object) -> Painted:
    if isinstance(value, Painted):
        return Painted(printable(value.text), value.colour)
    if isinstance(value, datetime):
        return Painted(when(value), "")
    return Painted("-" if value is None or value == "" else printable(str(value)), "")


def when(at: datetime, now: datetime | None = None) -> str:
    """Format an instant by its distance from now."""
    return distance(at, now or datetime.now(UTC))


def instant(at: datetime) -> str:
    """Format an instant in the time zone of the settings, and by its distance from now."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z} ({when(at)})"


def printable(text: str) -> str:
    """Return the text on one line, in which characters that control a terminal, or nobody sees, are escaped."""
    return visible(" ".join(text.split()))


def printable_lines(text: str) -> str:
    """Return the text as ``printable`` does, but keep its lines and their indentation."""
    return visible_lines(text.expandtabs())


# Headings of columns in tables; JSON has the columns' names.
_HEADS: Final = {
    "aggregate_type": "destination",
    "aggregate_id": "aggregate",
    "head_id": "message",
    "message_id": "message",
    "retry_count": "failed attempts",
}


def write_list(
    rows: QuerySet[Any],
    columns: Sequence[str],
    options: Mapping[str, Any],
    out: OutputWrapper,
    err: OutputWrapper,
    *,
    nothing: str,
    detail: str,
    below: Sequence[str] = (),
    only_in_json: Sequence[str] = (),
    waiting: Callable[[Sequence[Mapping[str, Any]]], Sequence[str]] | None = None,
) -> int:
    """Write the first ``--limit`` rows as a table, or as JSON; return how many.

    The table leaves out columns without any value. On a terminal it has the column ``detail`` below each row, after why
    the row waits, which ``waiting`` returns for each ("" if it does not); on a narrow one, after the columns ``below``.
    Without rows, write ``nothing`` to ``err``.
    """
    found = list(rows.values(*columns, *only_in_json)[: options["limit"] + 1])
    listed = found[: options["limit"]]
    if waiting is not None:
        for row, waits in zip(listed, waiting(listed), strict=True):
            row["waiting"] = waits
    if options["json"]:
        out.write(json.dumps(listed, indent=2, default=str))
    elif listed:
        screen = Screen.of(out, options)
        hidden = {detail, *(below if screen.is_narrow else ())}
        filled = {name for name in columns if any(row[name] not in (None, "", 0) for row in listed)}
        shown = [name for name in columns if name in filled - hidden]
        head = [_HEADS.get(name, name.removesuffix("_at")) for name in shown]
        cells = [[colour_of(row[name]) if name == "status" else row[name] for name in shown] for row in listed]
        details: list[str] = []
        for row in listed:
            waits = f"waiting: {row['waiting']}" if row.get("waiting") else ""
            why = "; ".join(part for part in (waits, row[detail]) if part)
            details.append(" · ".join(filter(None, (*(row[name] for name in below if name in hidden), why))))
        write_table([head, *cells], details, screen, out, detail=detail if waiting is None else "why")
    else:
        err.write(nothing)
    if len(found) > len(listed):
        err.write(first_only(len(listed)))
    return len(listed)


def first_only(count: int) -> str:
    """Return the note that only ``count`` of more rows are listed."""
    return f"only the first {'is' if count == 1 else f'{count:,} are'} listed; --limit lists more"


def write_table(
    rows: Sequence[Sequence[object]], details: Sequence[str], screen: Screen, out: OutputWrapper, *, detail: str
) -> None:
    """Write a table with a detail of each row, such as its last error.

    On a terminal the detail is below the row; elsewhere it is the last column, so that each row is a line for ``grep``.
    """
    if screen.width is None:
        shown = [[*row, text] for row, text in zip(rows, [detail, *details], strict=True)] if any(details) else rows
        out.write(table(shown, screen))
        return
    head, *lines = table(rows, screen).splitlines()
    out.write(head)
    for line, text in zip(lines, details, strict=True):
        out.write(line)
        for part in screen.wrap(printable(text), indent=_DETAIL_INDENT, lines=_DETAIL_LINES):
            out.write(screen.paint(part, "dim"))


_COLOURS: Final = {
    "running": "blue",
    "succeeded": "green",
    "published": "green",
    "failed": "red",
    "parked": "red",
    "rejected": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "waiting": "yellow",
    "retry": "yellow",
    "retrying": "yellow",
    "cancelling": "yellow",
    "timed out": "red",
}


def colour_of(state: str) -> Painted:
    """Return a state or status in its colour."""
    return Painted(state, _COLOURS.get(state, ""))


def write_page(
    title: str,
    state: str,
    *,
    notes: Sequence[tuple[str, str, str]],
    facts: Mapping[str, object],
    content: Mapping[str, object],
    screen: Screen,
    out: OutputWrapper,
) -> None:
    """Write one object: its title and state, notes (label, text, colour), facts, and content in full.

    Leaves out what is empty. Writes content that is not text as JSON.
    """
    shown, colour = colour_of(state)
    out.write(f"{screen.paint(printable(title), 'bold')} {screen.paint(shown, colour)}")
    for label, text, colour in notes:
        if text:
            out.write(screen.paint(printable_lines(f"{label}: {text}"), colour))
    out.write("")
    known = {name: value for name, value in facts.items() if value is not None and value != ""}
    width = max(map(len, known))
    for name, value in known.items():
        text = instant(value) if isinstance(value, datetime) else printable(str(value))
        out.write(f"  {screen.paint(name, 'dim')}{' ' * (width - len(name))}  {text}")
    for name, value in content.items():
        if value not in ("", {}):
            text = value if isinstance(value, str) else json.dumps(value, indent=2, default=str, ensure_ascii=False)
            out.write(f"\n{screen.paint(name, 'bold')}\n{printable_lines(text)}")


def write_counts(done: str, counts: Mapping[str, int], options: Mapping[str, Any], out: OutputWrapper) -> None:
    """Write counts by kind on a line, or as JSON."""
    out.write(json.dumps(counts) if options["json"] else f"{done}: {listed_counts(counts)}")


def listed_counts(counts: Mapping[str, int]) -> str:
    """Format counts by kind."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def ask(question: str, err: OutputWrapper, *, otherwise: str, remedy: str = "pass --yes") -> None:
    """Ask for a yes. Raises CommandError: ``otherwise`` after a no, ``remedy`` without a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to confirm on; {remedy}")
    err.write(f"{question} [y/N] ", ending="")
    err.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(otherwise)


def warn_of_kept_passwords(names: Iterable[str], err: OutputWrapper) -> None:
    """Name the roles whose password bootstrap kept although the settings have another."""
    for name in names:
        err.write(
            f"kept the password of {name}, which is not the one in ROLE_PASSWORDS; "
            "python manage.py bootstrap_roles --change-passwords changes it"
        )


_EVERY_S: Final = 2.0


class Progress:
    """Progress line, at most one every two seconds."""

    def __init__(self, err: OutputWrapper) -> None:
        self._err = err
        self._shown_at = time.monotonic()

    def show(self, what: str, count: int) -> None:
        """Write how many of something are done, unless the last line is too recent."""
        if time.monotonic() - self._shown_at >= _EVERY_S:
            self._shown_at = time.monotonic()
            self._err.write(f"{count:,} {what}")


@contextmanager
def plain_notes(err: OutputWrapper) -> Generator[None]:
    """Write to ``err`` without the colour of errors: what a command writes there is a note, unless it raises."""
    colour, err.style_func = err.style_func, None
    try:
        yield
    finally:
        err.style_func = colour


@contextmanager
def as_command_error() -> Generator[None]:
    """Turn our errors and those of settings, database and operating system into a CommandError with a code."""
    try:
        yield
    except SalonJobsError as error:
        raise CommandError(f"{error.code}: {error}") from error
    except ImproperlyConfigured as error:
        raise CommandError(f"{ConfigurationError.code}: {error}") from error
    except (Error, PsycopgError, OSError) as error:
        if isinstance(error.__cause__, UndefinedTable) and "salon_jobs_" in str(error):
            raise CommandError(
                f"{SchemaMissing.code}: the job tables are missing; run: python manage.py migrate"
            ) from error
        text = ServerReadOnly() if failed_read_only(error) else error
        raise CommandError(f"{NotReady.code}: {text}") from error


def change_rows(
    ids: Sequence[int],
    verb: Callable[[Sequence[int]], list[ActionResult[int]]],
    options: Mapping[str, Any],
    out: OutputWrapper,
    err: OutputWrapper,
    *,
    action: str,
    noun: str,
    done: str,
    known: int | None = None,
) -> None:
    """Ask unless ``--yes`` or none of the rows is ``known``, change a thousand rows at a time, and report.

    Writes the progress of several batches, and an early end, to ``err``. Raises CommandError without a terminal.
    """
    asked = len(ids) if known is None else known
    if asked and not options["yes"]:
        ask(f"{action} {with_noun(asked, noun)}?", err, otherwise="nothing was changed")
    results: list[ActionResult[int]] = []
    try:
        for start in range(0, len(ids), _BATCH):
            results += verb(ids[start : start + _BATCH])
            if len(ids) > _BATCH:
                err.write(f"{len(results):,} of {len(ids):,}")
    except BaseException:
        err.write(f"stopped after {len(results):,} of {len(ids):,}")
        raise
    write_results(results, done, options, out)


def write_results(
    results: Sequence[ActionResult[IdT]], done: str, options: Mapping[str, Any], out: OutputWrapper
) -> None:
    """Write the results as JSON, or a line for each that has details, and how many rows were changed."""
    if options["json"]:
        out.write(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        if result.detail:
            name = " ".join(result.id) if isinstance(result.id, tuple) else result.id
            out.write(printable(f"{name}: {result.detail}"))
    out.write(f"{done}: {sum(result.changed for result in results):,} of {len(results):,}")
