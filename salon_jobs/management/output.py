"""What commands print: tables, pages, JSON, questions, reports and error lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from django.db.models import QuerySet
from django.utils import timezone
from psycopg import Error as PsycopgError
from psycopg.errors import UndefinedTable

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SchemaMissing
from salon_jobs.core.records import ActionResult
from salon_jobs.core.terminal import Painted, Screen
from salon_jobs.core.text import SHOWN_AT_FIRST, beginning, visible, visible_lines
from salon_jobs.core.units import distance, with_noun
from salon_jobs.db.read_only import ServerReadOnly, failed_read_only
from salon_jobs.management.arguments import os_user
from salon_jobs.verbs import Verb

_BATCH: Final = 1000
_DETAIL_INDENT: Final = 4
_DETAIL_LINES: Final = 2
_PROGRESS_EVERY_S: Final = 2.0
# Headings of columns in tables; JSON has the columns' names.
_HEADS: Final = {
    "aggregate_type": "destination",
    "aggregate_id": "aggregate",
    "head_id": "message",
    "message_id": "message",
    "retry_count": "failed attempts",
}
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


def table(rows: Sequence[Sequence[object]], screen: Screen) -> list[str]:
    """Format a table with a header row: numbers to the right, text to the left. Empty cells get a dash."""
    shown: list[list[Painted]] = []
    for row in rows:
        cells: list[Painted] = []
        for value in row:
            text, colour = value if isinstance(value, Painted) else (value, "")
            text = when(text) if isinstance(text, datetime) else "" if text is None else printable(str(text))
            cells.append(Painted(text or "-", colour))
        shown.append(cells)
    head, *lines = shown
    return screen.table([each.text for each in head], lines)


def colour_of(state: str) -> Painted:
    """Return a state or status in its colour."""
    return Painted(state, _COLOURS.get(state, ""))


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


def aligned(facts: Mapping[str, object], screen: Screen) -> list[str]:
    """Format facts below each other, with their names in a column."""
    width = max(map(len, facts))
    texts = {
        name: instant(fact) if isinstance(fact, datetime) else printable(str(fact)) for name, fact in facts.items()
    }
    return [f"  {screen.paint(name, 'dim')}{' ' * (width - len(name))}  {text}" for name, text in texts.items()]


def listed_counts(counts: Mapping[str, int]) -> str:
    """Format counts by kind."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


class Console:
    """Where a subcommand reads its options, and writes.

    The result goes to standard output, with ``--json`` as one JSON document; notes, questions and progress go to
    standard error.
    """

    def __init__(self, options: Mapping[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        self.options, self.out, self.err = options, out, err
        self._progress_at = time.monotonic()

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def given(self, *names: str, **fields: str) -> dict[str, Any]:
        """Return the options that were given, each by its own name or that of the field it selects."""
        options = {**dict(zip(names, names, strict=True)), **fields}
        return {field: self[option] for field, option in options.items() if self[option] is not None}

    @property
    def using(self) -> str:
        """The alias through which operators' commands read and change."""
        return conf.reader_database

    @property
    def database(self) -> str:
        """The alias of the job tables."""
        return conf.database

    @cached_property
    def screen(self) -> Screen:
        return Screen.of(self.out, self.options)

    def write(self, text: str) -> None:
        """Write a part of the result."""
        self.out.write(text)

    def note(self, text: str) -> None:
        """Write a note beside the result."""
        self.err.write(text)

    def result(self, value: object, text: str) -> None:
        """Write the result: the text, or the value as JSON."""
        self.write(_json(value) if self["json"] else printable(text))

    def listing(self, value: object, rows: Sequence[Sequence[object]], nothing: str, **more: Any) -> None:
        """Write a table of the rows below the first, or the value as JSON; without rows, note ``nothing``."""
        if self["json"]:
            self.write(_json(value))
        elif len(rows) > 1:
            self.table(rows, **more)
        else:
            self.note(nothing)

    def table(self, rows: Sequence[Sequence[object]], details: Sequence[str] = (), *, detail: str = "") -> None:
        """Write a table, perhaps with a detail of each row, such as its last error.

        On a terminal the detail is below the row; elsewhere it is the last column, so that each row is a line for
        ``grep``.
        """
        if self.screen.width is None and any(details):
            rows = [[*row, text] for row, text in zip(rows, [detail, *details], strict=True)]
        head, *lines = table(rows, self.screen)
        self.write(head)
        for number, line in enumerate(lines):
            self.write(line)
            text = details[number] if details and self.screen.width is not None else ""
            for part in self.screen.wrap(printable(text), indent=_DETAIL_INDENT, lines=_DETAIL_LINES) if text else ():
                self.write(self.screen.paint(part, "dim"))

    def rows(
        self,
        rows: QuerySet[Any],
        columns: Sequence[str],
        *,
        nothing: str,
        detail: str,
        below: Sequence[str] = (),
        only_in_json: Sequence[str] = (),
        waiting: Callable[[Sequence[Mapping[str, Any]]], Sequence[str]] | None = None,
    ) -> int:
        """Write the first ``--limit`` rows; return how many.

        The table leaves out columns without any value. On a terminal it has the column ``detail`` below each row, after
        why the row waits, which ``waiting`` returns for each ("" if it does not); on a narrow one, after the columns
        ``below``.
        """
        found = list(rows.values(*columns, *only_in_json)[: self["limit"] + 1])
        listed = found[: self["limit"]]
        if waiting is not None:
            for row, waits in zip(listed, waiting(listed), strict=True):
                row["waiting"] = waits
        hidden = {detail, *(below if self.screen.is_narrow else ())}
        filled = {name for name in columns if any(row[name] not in (None, "", 0) for row in listed)}
        shown = [name for name in columns if name in filled - hidden]
        head = [_HEADS.get(name, name.removesuffix("_at")) for name in shown]
        cells = [[colour_of(row[name]) if name == "status" else row[name] for name in shown] for row in listed]
        details: list[str] = []
        for row in listed:
            waits = f"waiting: {row['waiting']}" if row.get("waiting") else ""
            why = "; ".join(part for part in (waits, row[detail]) if part)
            details.append(" · ".join(filter(None, (*(row[name] for name in below if name in hidden), why))))
        self.listing(listed, [head, *cells], nothing, details=details, detail=detail if waiting is None else "why")
        self.note_more(len(listed), len(found))
        return len(listed)

    def note_more(self, listed: int, found: int) -> None:
        """Note that only some of the rows are listed."""
        if found > listed:
            self.note(f"only the first {'is' if listed == 1 else f'{listed:,} are'} listed; --limit lists more")

    def page(
        self,
        value: object,
        title: str,
        state: str,
        *,
        notes: Sequence[tuple[str, str, str]],
        facts: Mapping[str, object],
        content: Mapping[str, object],
        below: Sequence[str] = (),
    ) -> None:
        """Write one object: its title and state, notes (label, text, colour), facts, content, and more lines.

        Of large content only the beginning. Leaves out what is empty. Writes content that is not text as JSON, and with
        ``--json`` only the value, whole.
        """
        if self["json"]:
            self.write(_json(value))
            return
        paint = self.screen.paint
        self.write(f"{paint(printable(title), 'bold')} {paint(*colour_of(state))}")
        for label, text, colour in notes:
            if text:
                self.write(paint(printable_lines(f"{label}: {text}"), colour))
        self.write("")
        for line in aligned({name: fact for name, fact in facts.items() if fact not in (None, "")}, self.screen):
            self.write(line)
        for name, part in content.items():
            if part not in ("", {}):
                text = part if isinstance(part, str) else _json(part, ensure_ascii=False)
                first, size = beginning(text)
                self.write(f"\n{paint(name, 'bold')}\n{printable_lines(first)}")
                if size:
                    said = f"… the first {SHOWN_AT_FIRST:,} of {size:,} bytes; --json writes all of it"
                    self.write(paint(said, "yellow"))
        for line in below:
            self.write(line)

    def confirm(
        self, question: str, *, unless: str = "yes", otherwise: str = "nothing was changed", remedy: str = "pass --yes"
    ) -> None:
        """Ask unless that option is given. Raises CommandError: ``otherwise`` after a no, ``remedy`` if nobody can."""
        if not self[unless]:
            ask(question, self.err, otherwise=otherwise, remedy=remedy)

    def progress(self, what: str, count: int) -> None:
        """Note how many of something are done, at most every two seconds."""
        if time.monotonic() - self._progress_at >= _PROGRESS_EVERY_S:
            self._progress_at = time.monotonic()
            self.note(f"{count:,} {what}")

    def change_named(self, verb: Verb, name: str, *, kind: str = "") -> None:
        """Change the row of this name, or of this kind and name, without a question, and report it."""
        key = f"{kind}:{name}" if kind else name
        verb.apply([key], by=os_user(), using=self.using)
        self.result({verb.done: {kind: name} if kind else name}, f"{verb.done}: {f'{kind} {name}'.strip()}")

    def change(self, verb: Verb, ids: Sequence[int], *, known: int | None = None, **arguments: Any) -> None:
        """Ask unless none of the rows is ``known``, change a thousand rows at a time, and report.

        Notes the progress of several batches, and an early end. Raises CommandError without a terminal.
        """
        if asked := len(ids) if known is None else known:
            self.confirm(f"{verb.name.capitalize()} {with_noun(asked, str(verb.of._meta.verbose_name))}?")
        results: list[ActionResult[Any]] = []
        try:
            for start in range(0, len(ids), _BATCH):
                results += verb.apply(ids[start : start + _BATCH], by=os_user(), using=self.using, **arguments)
                if len(ids) > _BATCH:
                    self.note(f"{len(results):,} of {len(ids):,}")
        except BaseException:
            self.note(f"stopped after {len(results):,} of {len(ids):,}")
            raise
        self.changed(results, verb.reported or verb.done)

    def changed(self, results: Sequence[ActionResult[Any]], done: str) -> None:
        """Write the results as JSON, or a line for each that has details, and how many rows were changed."""
        if not self["json"]:
            for result in results:
                if result.detail:
                    name = result.id if isinstance(result.id, int | str | UUID) else " ".join(result.id)
                    self.write(printable(f"{name}: {result.detail}"))
        changed = sum(result.changed for result in results)
        self.result([asdict(result) for result in results], f"{done}: {changed:,} of {len(results):,}")


def _json(value: object, *, ensure_ascii: bool = True) -> str:
    return json.dumps(value, indent=2, default=str, ensure_ascii=ensure_ascii)


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
