"""Output of the subcommands of ``salon_jobs``: tables, pages, facts, progress and JSON. Only they load rich."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import cached_property
from io import StringIO
from itertools import groupby
from typing import Any, Final, Literal
from uuid import UUID

from django.core.management.base import OutputWrapper
from django.db.models import QuerySet
from django.utils import timezone
from rich.console import Console as Screen
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult
from salon_jobs.core.text import SHOWN_AT_FIRST, beginning, visible, visible_lines
from salon_jobs.core.units import relative_time, with_noun
from salon_jobs.db import clock
from salon_jobs.jobs.held import Patience
from salon_jobs.management.arguments import os_user
from salon_jobs.management.notes import ask
from salon_jobs.process.logs import is_coloured
from salon_jobs.verbs import Verb

_BATCH: Final = 1000
_DETAIL_INDENT: Final = 4
_DETAIL_LINES: Final = 2
_PROGRESS_EVERY_S: Final = 2.0
# In a terminal with fewer columns, less important columns of a table are left out.
_WIDE: Final = 110
# Output to a pipe or a file is not laid out for a width.
_UNLIMITED: Final = 1_000_000
# The space between the columns of a table. Numbers, and texts no wider than this, are never folded or cut.
_GAP: Final = 2
_SHORT: Final = 12
_NUMBER: Final = re.compile(r"[-–]|[<≈]?[\d,.]+\+?( (ms|s|min|h|d))?")
# Headings of columns in tables; JSON has the columns' names.
_HEADS: Final = {
    "aggregate_type": "destination",
    "aggregate_id": "aggregate",
    "head_id": "message",
    "message_id": "message",
    "retry_count": "failed attempts",
}
_EMPTY: Final = (None, "", 0)
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


def screen_of(stream: Any, options: Mapping[str, Any]) -> Screen:
    """Return rich's console for a command's stream, without markup: others wrote the texts that it shows."""
    is_terminal = stream.isatty()
    return Screen(
        file=stream,
        color_system="standard" if is_coloured(stream, options) else None,
        force_terminal=is_terminal,
        no_color=False,  # decided by the line above
        width=None if is_terminal else _UNLIMITED,
        markup=False,
        emoji=False,
        highlight=False,
    )


class Listing:
    """Table with a header row, and perhaps a detail of each row below it, as wide as the screen.

    Numbers are to the right, texts to the left; empty cells get a dash. On a narrow screen long texts are folded, or,
    with ``on_one_line``, cut. Nothing else is: a row that is still too wide is left to the terminal.
    """

    def __init__(
        self, rows: Sequence[Sequence[object]], details: Sequence[str] = (), *, on_one_line: bool = False
    ) -> None:
        self._details = details
        self._table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
        self._least = -_GAP
        self._rows = [[_cell(value) for value in row] for row in rows]
        self._columns: list[tuple[Literal["left", "right"], int]] = []
        heads, *lines = self._rows
        for head, column in zip(heads, zip(*lines, strict=True), strict=True):
            width = max(cell.cell_len for cell in (head, *column))
            is_number = all(_NUMBER.fullmatch(cell.plain) for cell in column)
            is_whole = is_number or width <= _SHORT
            self._columns.append(("right" if is_number else "left", width))
            self._least += _GAP + (width if is_whole else max(_SHORT, head.cell_len))
            head.stylize("bold")
            self._table.add_column(head, justify=self._columns[-1][0], no_wrap=is_whole, overflow="fold")
        for number, line in enumerate(lines):
            for cell in line if on_one_line else ():
                cell.no_wrap, cell.overflow = True, "ellipsis"
            self._table.add_row(*line, style=Style(meta={"row": number}))

    def __rich_console__(self, console: Screen, options: ConsoleOptions) -> RenderResult:
        if options.max_width == _UNLIMITED:
            # In a file or a pipe nothing is folded, which would take rich more than a millisecond a row.
            for row in self._rows:
                for cell, (justify, width) in zip(row, self._columns, strict=True):
                    cell.align(justify, width)
                yield Text(" " * _GAP, no_wrap=True).join(row)
            return
        width = max(self._least, options.max_width)
        lines = console.render_lines(self._table, options.update_width(width), pad=False)
        for number, parts in groupby(lines, key=_row_of):
            for part in parts:
                yield from part
                yield Segment.line()
            detail = self._details[number] if self._details and number is not None else ""
            if detail:
                text = Text(printable(detail), "dim", overflow="fold")
                text.truncate(_DETAIL_LINES * (options.max_width - _DETAIL_INDENT), overflow="ellipsis")
                yield Padding(text, (0, 0, 0, _DETAIL_INDENT), expand=False)


def _row_of(line: Sequence[Segment]) -> int | None:
    """Return the number of the row to which a line of a table belongs; None for the header."""
    style = line[0].style
    return None if style is None else style.meta.get("row")


def _cell(value: object) -> Text:
    text, style = (value.plain, value.style) if isinstance(value, Text) else (value, "")
    text = when(text) if isinstance(text, datetime) else "" if text is None else printable(str(text))
    return Text.assemble((text or "-", style))


def colour_of(state: str) -> Text:
    """Return a state or status in its colour."""
    return Text(state, _COLOURS.get(state, ""))


def when(at: datetime, now: datetime | None = None) -> str:
    """Format an instant by its distance from now."""
    return relative_time(at, now or clock.now())


def instant(at: datetime) -> str:
    """Format an instant in the time zone of the settings, and by its distance from now."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z} ({when(at)})"


def printable(text: str) -> str:
    """Return the text on one line, with characters that control a terminal or are invisible escaped."""
    return visible(" ".join(text.split()))


def printable_lines(text: str) -> str:
    """Return the text as ``printable`` does, but keep its lines and their indentation."""
    return visible_lines(text.expandtabs())


def listed_counts(counts: Mapping[str, int]) -> str:
    """Format counts by kind."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


class Console:
    """Options and output of a subcommand.

    The result goes to standard output, with ``--json`` as one JSON document; notes, questions and progress go to
    standard error.
    """

    def __init__(self, options: Mapping[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        self.options, self.out, self.err = options, out, err

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
        screen = screen_of(self.out, self.options)
        screen.file = StringIO()  # captured: Django's wrapper ends each write, even of nothing, with a new line
        return screen

    @property
    def is_narrow(self) -> bool:
        """Whether less important columns of a table are left out."""
        return self.screen.width < _WIDE

    def write(self, part: RenderableType) -> None:
        """Write a part of the result. Lines of a text are not broken: a terminal does that, without line ends."""
        with self.screen.capture() as captured:
            self.screen.print(part, soft_wrap=isinstance(part, str | Text), crop=False)
        # rich fills up the last column of a table.
        self.out.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))

    def heading(self, text: str) -> None:
        """Write the heading of the next part."""
        self.write(Text(printable(text), "bold"))

    def facts(self, facts: Mapping[str, object]) -> None:
        """Write facts below each other, with their names in a column. None is folded, so that it can be copied."""
        width = max(map(len, facts))
        for name, fact in facts.items():
            text = instant(fact) if isinstance(fact, datetime) else printable(str(fact))
            self.write(Text.assemble("  ", (name, "dim"), " " * (width - len(name) + 2), text))

    def note(self, text: str) -> None:
        """Write a note, apart from the result."""
        self.err.write(text)

    def result(self, value: object, text: str) -> None:
        """Write the result: the text, or the value as JSON."""
        self.out.write(_json(value) if self["json"] else printable(text))

    def listing(
        self,
        value: object,
        rows: Sequence[Sequence[object]],
        nothing: str,
        *,
        below: Collection[str] = (),
        only_wide: Collection[str] = (),
    ) -> None:
        """Write the rows below the first as a table, or the value as JSON; without any, note ``nothing``.

        Columns without a value are left out. The last may be "why": on a terminal it has room below each row. A narrow
        one shows the columns ``below`` there, too, and none that are ``only_wide``.
        """
        if self["json"]:
            self.out.write(_json(value))
            return
        if len(rows) == 1:
            self.note(nothing)
            return
        beneath = {*(below if self.is_narrow else ()), *(["why"] if self.screen.is_terminal else ())}
        left_out = {*(only_wide if self.is_narrow else ())}
        filled = [
            [head, *column] for head, *column in zip(*rows, strict=True) if any(each not in _EMPTY for each in column)
        ]
        above = [column for column in filled if column[0] not in beneath | left_out]
        texts = zip(*(column[1:] for column in filled if column[0] in beneath), strict=True)
        details = [" · ".join(str(text) for text in row if text not in _EMPTY) for row in texts]
        self.write(Listing([*zip(*above, strict=True)], details))

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

        The column ``detail`` tells why, after the result of ``waiting`` for each row ("" if it does not wait).
        """
        found = list(rows.values(*columns, *only_in_json)[: self["limit"] + 1])
        listed = found[: self["limit"]]
        if waiting is not None:
            for row, waits in zip(listed, waiting(listed), strict=True):
                row["waiting"] = waits
        names = [name for name in columns if name != detail]
        table: list[list[object]] = [[*(_HEADS.get(name, name.removesuffix("_at")) for name in names), "why"]]
        for row in listed:
            waits = f"waiting: {row['waiting']}" if row.get("waiting") else ""
            cells = [colour_of(row[name]) if name == "status" else row[name] for name in names]
            table.append([*cells, "; ".join(filter(None, (waits, row[detail])))])
        self.listing(listed, table, nothing, below=[_HEADS.get(name, name) for name in below])
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
        below: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write one object: its title and state, notes (label, text, colour), facts, content, and texts below them.

        Writes only the beginning of large content. Leaves out empty parts. Writes content other than text as JSON, and
        with ``--json`` only the value, whole.
        """
        if self["json"]:
            self.out.write(_json(value))
            return
        self.write(Text.assemble((printable(title), "bold"), " ", colour_of(state)))
        for label, text, colour in notes:
            if text:
                self.write(Text(printable_lines(f"{label}: {text}"), colour))
        self.write("")
        self.facts({name: fact for name, fact in facts.items() if fact not in (None, "")})
        for name, part in content.items():
            if part not in ("", {}):
                text = part if isinstance(part, str) else _json(part, ensure_ascii=False)
                first, size = beginning(text)
                self.section(name, first)
                if size:
                    said = f"… the first {SHOWN_AT_FIRST:,} of {size:,} bytes; --json writes all of it"
                    self.write(Text(said, "yellow"))
        for name, text in below:
            self.section(name, text)

    def section(self, name: str, text: str) -> None:
        """Write a text below its name."""
        self.write("")
        self.heading(name)
        self.write(printable_lines(text))

    def confirm(
        self, question: str, *, unless: str = "yes", otherwise: str = "nothing was changed", remedy: str = "pass --yes"
    ) -> None:
        """Ask unless this option is given. Raises CommandError: ``otherwise`` after a no, ``remedy`` if unanswered."""
        if not self[unless]:
            ask(question, self.err, otherwise=otherwise, remedy=remedy)

    @contextmanager
    def progress(self, total: int | None = None) -> Generator[Callable[[str, int], None]]:
        """Yield a function to report how many are done: of a ``total`` on a terminal as a bar, else every two seconds.

        Write nothing else to the terminal next to a bar.
        """
        if total is not None and self.err.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - seldom

            columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            with Progress(*columns, console=screen_of(sys.stderr, self.options), transient=True) as bar:
                shown = bar.add_task("", total=total)
                yield lambda what, count: bar.update(shown, description=f"{count:,} {what}", completed=count)
            return
        noted_at = time.monotonic()

        def note(what: str, count: int) -> None:
            nonlocal noted_at
            if time.monotonic() - noted_at >= _PROGRESS_EVERY_S:
                noted_at = time.monotonic()
                self.note(f"{count:,} {what}")

        yield note

    def change_named(self, verb: Verb, name: str, *, kind: str = "") -> None:
        """Change the row of this name, or of this kind and name, without a question, and report it, or why not."""
        key, shown = (f"{kind}:{name}", f"{kind} {name}") if kind else (name, name)
        [result] = verb.apply([key], by=os_user(), using=self.using)
        said: dict[str, Any] = {} if result.changed else {"changed": False, "detail": result.detail}
        text = f"{verb.done}: {shown}" if result.changed else f"{shown}: {result.detail}"
        self.result({verb.done: {kind: name} if kind else name, **said}, text)

    def change(self, verb: Verb, ids: Sequence[int], *, known: int | None = None, **arguments: Any) -> None:
        """Ask unless none of the rows is ``known``, change a thousand rows at a time, and report.

        Notes the progress of several batches, and an early end. Raises CommandError without a terminal.
        """
        if asked := len(ids) if known is None else known:
            self.confirm(f"{verb.name.capitalize()} {with_noun(asked, str(verb.of._meta.verbose_name))}?")
        results: list[ActionResult[Any]] = []
        shared: dict[str, Any] = {"by": os_user(), "using": self.using, "patience": Patience(), **arguments}
        try:
            with self.progress(len(ids)) as progress:
                for start in range(0, len(ids), _BATCH):
                    results += verb.apply(ids[start : start + _BATCH], **shared)
                    progress(f"of {len(ids):,}", len(results))
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
