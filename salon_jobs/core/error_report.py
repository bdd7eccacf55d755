"""Describes an exception for its row, whatever that exception does when it is asked."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from salon_jobs.core.errors import Interrupted, SalonJobsError

_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Holds what an error row shows; every field fits its column and PostgreSQL's text."""

    error_class: str
    code: str
    message: str
    traceback: str


def report(error: BaseException) -> ErrorReport:
    """Describe an error; the end of a long traceback is kept. Never raises: a job's own exception may do anything."""
    kind = type(error)
    return ErrorReport(
        error_class=_told(lambda: f"{kind.__module__}.{kind.__qualname__}")[:255],
        code=_told(lambda: str(error.code))[:64] if isinstance(error, SalonJobsError | Interrupted) else "",
        message=_told(lambda: str(error))[:_LONGEST_MESSAGE],
        traceback=_told(lambda: "".join(traceback.format_exception(error)))[-_LONGEST_TRACEBACK:],
    )


def storable(text: str) -> str:
    """Escape what PostgreSQL's text can not hold: NUL, and lone surrogates (a file name that is not UTF-8)."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _told(tell: Callable[[], str]) -> str:
    try:
        return storable(tell())
    except BaseException as fault:  # __str__ may even ask the interpreter to exit
        return f"(can not be shown: {type(fault).__name__})"
