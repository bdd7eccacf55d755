"""Tables, questions, progress and error lines that commands print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError, InterfaceError
from psycopg import Error as PsycopgError

from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError
from salon_jobs.core.records import ActionResult, IdT

_LONGEST: Final = 60


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


def shortened(text: str | None) -> str:
    """Shorten a long text, such as an error message, that nobody copies from a table."""
    line = " ".join((text or "").split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def ask(question: str, err: OutputWrapper, *, otherwise: str, remedy: str) -> None:
    """Ask for a yes. Raises CommandError with ``otherwise`` after a no, with ``remedy`` without a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody can be asked here: {remedy}")
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
        self._told = time.monotonic()

    def tell(self, what: str, count: int) -> None:
        """Write how many of something are done, unless the last line is too recent."""
        if time.monotonic() - self._told >= _EVERY_S:
            self._told = time.monotonic()
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
    except (DatabaseError, InterfaceError, PsycopgError, OSError) as error:
        raise CommandError(f"{NotReady.code}: {error}") from error


def in_batches(
    ids: Sequence[int], operate: Callable[[Sequence[int]], list[ActionResult[int]]], *, batch: int, err: OutputWrapper
) -> list[ActionResult[int]]:
    """Operate on ``batch`` ids at a time; the progress of several batches, and an early end, go to ``err``."""
    results: list[ActionResult[int]] = []
    try:
        for start in range(0, len(ids), batch):
            results += operate(ids[start : start + batch])
            if len(ids) > batch:
                err.write(f"{len(results):,} of {len(ids):,}")
    except BaseException:
        err.write(f"stopped after {len(results):,} of {len(ids):,}")
        raise
    return results


def tell(
    results: Sequence[ActionResult[IdT]],
    done: str,
    named: Callable[[ActionResult[IdT]], object],
    *,
    as_json: bool,
    out: OutputWrapper,
) -> None:
    """Write the results as JSON, or a line for each with details, and how many were changed."""
    if as_json:
        out.write(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        if result.detail:
            out.write(printable(f"{named(result)}: {result.detail}"))
    out.write(f"{done}: {sum(result.changed for result in results):,} of {len(results):,}")
