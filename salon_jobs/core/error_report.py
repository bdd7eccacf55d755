"""Description of an exception for rows, logs and reports, safe even if the exception's own methods fail."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from salon_jobs.core.errors import Interrupted, SalonJobsError
from salon_jobs.core.redaction import without_secrets
from salon_jobs.core.text import LONGEST_MESSAGE, visible_lines

_LONGEST_TRACEBACK = 20_000
_LONGEST_ALIKE = 200
_LONGEST_NOTE: Final = 1_000
# How much of an exception with very many parts is shown.
_MOST_NOTES: Final = 10
_MOST_CHAINED: Final = 10
_MOST_GROUPED: Final = 10
_MOST_FRAMES: Final = 60
_DEEPEST_GROUP: Final = 5
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
# Our modules, and those of the event loop, that call a handler.
_CALLERS: Final = frozenset({"salon_jobs", "asyncio", "concurrent"})
_CAUSED: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_FOLLOWED: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Contents of an error row; every field fits its column and PostgreSQL's text, without the values REDACT names.

    ``alike`` is equal for errors of one kind: same class, innermost function of the host's own code, and message
    without its varying parts.
    """

    error_class: str
    code: str
    message: str
    traceback: str
    alike: str


def report(error: BaseException) -> ErrorReport:
    """Describe an error, keeping the end of a long traceback. Never raises, even if the error's own methods do."""
    message = message_of(error)
    varied = _VARIES.sub("*", message.partition("\n")[0])
    return ErrorReport(
        error_class=_class_of(error),
        code=_text(lambda: str(error.code))[:64] if isinstance(error, SalonJobsError | Interrupted) else "",
        message=message,
        traceback=f"{traceback_of(error)}\n"[-_LONGEST_TRACEBACK:],
        alike="\x1f".join((_class_of(error), _text(lambda: _raised_in(error)), varied[:_LONGEST_ALIKE])),
    )


def message_of(error: BaseException) -> str:
    """Return the text of an error: bounded, printable, and without secrets. Never raises."""
    return _text(lambda: shown_message(str(error)))


def shown_message(text: str) -> str:
    """Return the text of an error for display: the beginning of a long one, without secrets."""
    shown = visible_lines(without_secrets(text[: 2 * LONGEST_MESSAGE]))
    if len(text) <= 2 * LONGEST_MESSAGE and len(shown) <= LONGEST_MESSAGE:
        return shown
    end = f"… ({len(text):,} characters)"
    return shown[: LONGEST_MESSAGE - len(end)] + end


def traceback_of(error: BaseException, frames: TracebackType | None = None) -> str:
    """Format a traceback as Python does, with messages as ``message_of`` returns them; keep the end of a long one.

    If the host's own code failed, the frames of our callers are left out. ``frames`` replaces those of the error
    itself. Never raises.
    """
    return _text(lambda: "".join(_chain(error, frames or error.__traceback__, 0)).rstrip("\n"))[-_LONGEST_TRACEBACK:]


def storable(text: str) -> str:
    """Escape characters that PostgreSQL's text lacks: NUL, and lone surrogates (a file name that is not UTF-8)."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _chain(error: BaseException, frames: TracebackType | None, depth: int) -> Iterator[str]:
    """Yield the lines of an error and of the errors that led to it, the first of them first."""
    chained = [(error, frames, "")]
    known = {id(error)}
    while len(chained) < _MOST_CHAINED:
        last = chained[-1][0]
        before, why = last.__cause__, _CAUSED
        if before is None and not last.__suppress_context__:
            before, why = last.__context__, _FOLLOWED
        if before is None or id(before) in known:
            break
        known.add(id(before))
        chained.append((before, before.__traceback__, why))
    for each, its_frames, why in reversed(chained):
        yield from _one(each, its_frames, depth)
        yield why


def _one(error: BaseException, frames: TracebackType | None, depth: int) -> Iterator[str]:
    # Without the frames of our code that called the host's; all of them if there are none of the host's.
    first = frames
    while first is not None and first.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _CALLERS:
        first = first.tb_next
    if any(not frame.f_code.co_filename.startswith(_OTHERS) for frame, _ in traceback.walk_tb(first)):
        frames = first
    if frames is not None:
        yield "Traceback (most recent call last):\n"
        for frame in traceback.format_list(traceback.extract_tb(frames, -_MOST_FRAMES)):
            yield visible_lines(without_secrets(frame, code=True))
    name = _class_of(error).removeprefix("builtins.").removeprefix("__main__.")
    message = message_of(error)
    yield f"{name}: {message}\n" if message else f"{name}\n"
    notes: Any = getattr(error, "__notes__", ())
    if type(notes) is list:
        yield from map(_note_line, cast("list[object]", notes)[:_MOST_NOTES])
    if isinstance(error, BaseExceptionGroup):
        grouped: tuple[BaseException, ...] = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        shown = grouped[:_MOST_GROUPED] if depth < _DEEPEST_GROUP else ()
        for number, each in enumerate(shown, 1):
            yield f"  +---------------- {number} ----------------\n"
            text = "".join(_chain(each, each.__traceback__, depth + 1)).rstrip("\n")
            yield "".join(f"  | {line}\n" for line in text.split("\n"))
        if len(grouped) > len(shown):
            yield f"  +---------------- and {len(grouped) - len(shown):,} more\n"


def _note_line(note: object) -> str:
    return f"{_text(lambda: shown_message(str(note))[:_LONGEST_NOTE])}\n"


def _class_of(error: BaseException) -> str:
    kind = type(error)
    return _text(lambda: visible_lines(f"{kind.__module__}.{kind.__qualname__}"))[:255]


def _raised_in(error: BaseException) -> str:
    # Without the line number, which changes with edits.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OTHERS)]
    innermost = (own or frames)[-1:]
    return "".join(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in innermost)


def _text(describe: Callable[[], str]) -> str:
    try:
        return storable(describe())
    except BaseException as fault:  # __str__ may even raise SystemExit
        return f"(cannot be shown: {type(fault).__name__})"
