"""Tables, JSON, questions, reports and error lines that commands print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from django.db.models import QuerySet
from psycopg import Error as PsycopgError
from psycopg.errors import UndefinedTable

from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SchemaMissing
from salon_jobs.core.records import ActionResult, IdT
from salon_jobs.core.units import with_noun

_SHORT: Final = 60
_BATCH: Final = 1000


def table(rows: Sequence[Sequence[object]]) -> str:
    """Format a table with a header row, the first column aligned left and the others right. Empty cells get a dash."""
    lines = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in lines
    )


def printable(text: str) -> str:
    """Return the text on one line, with a question mark for each character that could control the terminal."""
    return printable_lines(" ".join(text.split()))


def printable_lines(text: str) -> str:
    """Return the text as ``printable`` does, but keep its lines and their indentation."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text.expandtabs())


def shortened(text: str) -> str:
    """Shorten a long text, such as an error message, that nobody copies from a table."""
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else f"{line[:_SHORT]}…"


def write_list(
    rows: QuerySet[Any],
    columns: Sequence[str],
    options: Mapping[str, Any],
    out: OutputWrapper,
    err: OutputWrapper,
    *,
    nothing: str,
    only_in_json: Sequence[str] = (),
) -> int:
    """Write the first ``--limit`` rows as a table, with long texts shortened, or as JSON; return how many.

    Without any, write ``nothing`` to ``err``.
    """
    found = list(rows.values(*columns, *only_in_json)[: options["limit"] + 1])
    listed = found[: options["limit"]]
    if options["json"]:
        out.write(json.dumps(listed, indent=2, default=str))
    elif listed:
        long = {"reason", "last_error"}
        cells = ([shortened(row[name]) if name in long else row[name] for name in columns] for row in listed)
        out.write(table([columns, *cells]))
    else:
        err.write(nothing)
    if len(found) > len(listed):
        err.write(f"only the first {len(listed):,} are listed; --limit lists more")
    return len(listed)


def write_object(shown: Mapping[str, Any], options: Mapping[str, Any], out: OutputWrapper) -> None:
    """Write an object as lines, or as JSON."""
    if options["json"]:
        out.write(json.dumps(shown, indent=2, default=str))
        return
    for name, value in shown.items():
        is_json = isinstance(value, dict | list)
        text = json.dumps(value, indent=2, default=str, ensure_ascii=False) if is_json else str(value)
        out.write(printable_lines(f"{name}: {text}"))


def write_counts(done: str, counts: Mapping[str, int], options: Mapping[str, Any], out: OutputWrapper) -> None:
    """Write counts by kind on a line, or as JSON."""
    out.write(json.dumps(counts) if options["json"] else f"{done}: {listed_counts(counts)}")


def listed_counts(counts: Mapping[str, int]) -> str:
    """Format counts by kind."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def ask(question: str, err: OutputWrapper, *, otherwise: str, remedy: str = "pass --yes") -> None:
    """Ask for a yes. Raises CommandError with ``otherwise`` after a no, with ``remedy`` without a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to confirm on; {remedy}")
    err.write(f"{question} [y/N] ", ending="")
    err.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(otherwise)


def warn_of_kept_passwords(names: Iterable[str], err: OutputWrapper) -> None:
    """Name the roles whose password bootstrap kept although the settings hold another."""
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
def as_command_error() -> Generator[None]:
    """Turn our errors and those of Django's settings, the database and the system into a CommandError with a code."""
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
        raise CommandError(f"{NotReady.code}: {error}") from error


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
) -> None:
    """Ask unless ``--yes``, change a thousand rows at a time, and report.

    The progress of several batches, and an early end, go to ``err``. Raises CommandError without a terminal.
    """
    if ids and not options["yes"]:
        ask(f"{action} {with_noun(len(ids), noun)}?", err, otherwise="nothing was changed")
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
    """Write the results as JSON, or a line for each with details, and how many rows were changed."""
    if options["json"]:
        out.write(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        if result.detail:
            name = " ".join(result.id) if isinstance(result.id, tuple) else result.id
            out.write(printable(f"{name}: {result.detail}"))
    out.write(f"{done}: {sum(result.changed for result in results):,} of {len(results):,}")
