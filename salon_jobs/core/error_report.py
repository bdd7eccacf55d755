"""Description of an exception for its row, safe whatever the exception's own methods do."""

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
# The parts that vary between errors of one kind: quoted text, uuids, addresses and hashes, numbers.
_VARIES: Final = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b|\b[0-9a-f]{16,}\b|\d+",
    re.IGNORECASE,
)
# Code in these places is not the host's own.
_OTHERS: Final = tuple(
    {
        str(Path(__file__).resolve().parents[1]),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    }
)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Contents of an error row; every field fits its column and PostgreSQL's text.

    ``alike`` is equal for errors of one kind: same class, innermost function of the host's own code, and message
    without its varying parts.
    """

    error_class: str
    code: str
    message: str
    traceback: str
    alike: str


def report(error: BaseException) -> ErrorReport:
    """Describe an error, keeping the end of a long traceback. Never raises, whatever the error's own methods do."""
    kind = type(error)
    error_class = _text(lambda: f"{kind.__module__}.{kind.__qualname__}")[:255]
    return ErrorReport(
        error_class=error_class,
        code=_text(lambda: str(error.code))[:64] if isinstance(error, SalonJobsError | Interrupted) else "",
        message=_text(lambda: str(error))[:_LONGEST_MESSAGE],
        traceback=_text(lambda: "".join(traceback.format_exception(error)))[-_LONGEST_TRACEBACK:],
        alike="\x1f".join(
            (error_class, _text(lambda: _raised_in(error)), _text(lambda: _without_variables(str(error))))
        ),
    )


def storable(text: str) -> str:
    """Escape what PostgreSQL's text cannot hold: NUL, and lone surrogates (a file name that is not UTF-8)."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _raised_in(error: BaseException) -> str:
    # Without the line number, which changes with edits.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OTHERS)]
    innermost = (own or frames)[-1:]
    return "".join(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in innermost)


def _without_variables(message: str) -> str:
    # Cut first: a message can quote long text and contain very many numbers.
    return _VARIES.sub("*", message[:_LONGEST_MESSAGE].partition("\n")[0])[:_LONGEST_ALIKE]


def _text(describe: Callable[[], str]) -> str:
    try:
        return storable(describe())
    except BaseException as fault:  # __str__ may even raise SystemExit
        return f"(cannot be shown: {type(fault).__name__})"
