"""Describes an exception for its row, whatever that exception does when it is asked."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from salon_jobs.core.errors import Interrupted, SalonJobsError

_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 20_000
_LONGEST_ALIKE = 200
# What differs from one error to the next of a kind: quoted text, uuids, addresses and hashes, numbers.
_VARIES: Final = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b|\b[0-9a-f]{16,}\b|\d+",
    re.IGNORECASE,
)
# Frames from there are not the host's own code.
_OTHERS: Final = tuple(
    {
        str(Path(__file__).resolve().parents[1]),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    }
)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Holds what an error row shows; every field fits its column and PostgreSQL's text.

    ``alike`` is the same for errors of one kind: the class, the innermost function of the host's own code, and the
    message without what varies in it.
    """

    error_class: str
    code: str
    message: str
    traceback: str
    alike: str


def report(error: BaseException) -> ErrorReport:
    """Describe an error; the end of a long traceback is kept. Never raises: a job's own exception may do anything."""
    kind = type(error)
    error_class = _told(lambda: f"{kind.__module__}.{kind.__qualname__}")[:255]
    return ErrorReport(
        error_class=error_class,
        code=_told(lambda: str(error.code))[:64] if isinstance(error, SalonJobsError | Interrupted) else "",
        message=_told(lambda: str(error))[:_LONGEST_MESSAGE],
        traceback=_told(lambda: "".join(traceback.format_exception(error)))[-_LONGEST_TRACEBACK:],
        alike="\x1f".join(
            (error_class, _told(lambda: _raised_in(error)), _told(lambda: _without_variables(str(error))))
        ),
    )


def storable(text: str) -> str:
    """Escape what PostgreSQL's text can not hold: NUL, and lone surrogates (a file name that is not UTF-8)."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _raised_in(error: BaseException) -> str:
    """Name the innermost function of the host's own code; of all code where there is none. Not its line: that moves."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OTHERS)]
    innermost = (own or frames)[-1:]
    return "".join(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in innermost)


def _without_variables(message: str) -> str:
    # Cut first: what a message quotes can be long, and there can be very many numbers in it.
    return _VARIES.sub("*", message[:_LONGEST_MESSAGE].partition("\n")[0])[:_LONGEST_ALIKE]


def _told(tell: Callable[[], str]) -> str:
    try:
        return storable(tell())
    except BaseException as fault:  # __str__ may even ask the interpreter to exit
        return f"(can not be shown: {type(fault).__name__})"
