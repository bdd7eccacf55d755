"""Reader of the sections of ``SALON_JOBS``: msgspec checks each value by its type, and every error names the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache, partial
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from salon_jobs.core.errors import ConfigurationError, suggest

T = TypeVar("T")
# Reads a value in place of msgspec: returns the value to keep, or raises ValueError with the expected form.
Reader = Callable[[Any], Any]
# Marks a field with a value that errors leave out.
SECRET: Final = object()


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="upper"):
    """Base of the sections. A field's type defines its valid values, and its default stands for a missing key.

    If the type does not suffice, ``Meta`` adds the bounds or the description; a ``Reader`` in the annotation reads
    values that msgspec cannot.
    """

    def __repr__(self) -> str:
        # Without values: a traceback with local variables would show secrets.
        return f"<{type(self).__name__}>"


def read_section(kind: type[T], value: object, *, path: str, others: Mapping[str, Reader] = MappingProxyType({})) -> T:
    """Build a section from a dict. Raises ConfigurationError with all of its faults, each naming its field.

    ``others`` are readers of keys that are declared elsewhere: they are validated here, and not kept.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must be a dict, not {type(value).__name__}")
    known = _fields(cast("Any", kind))
    read: dict[str, Any] = {}
    faults: list[str] = []
    for key, given in cast("dict[str, Any]", value).items():
        try:
            if key in others:
                others[key](given)
            elif key in known:
                read[known[key].name] = read_value(known[key].type, given, path=f"{path}[{key!r}]")
            else:
                faults.append(f"{path} has an unknown key {key!r}; {suggest(str(key), sorted({*known, *others}))}")
        except ConfigurationError as error:
            faults += error.args
    if faults:
        raise ConfigurationError(*faults)
    return kind(**read)


@cache
def _fields(kind: Any) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields by key, cached: resolving their types takes longer than reading them."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def read_value(kind: Any, given: Any, *, path: str) -> Any:
    """Read one value of a type, annotated as that of a section's field. Raises ConfigurationError naming the field."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if given is None and NoneType in choices:
        return None
    declared = choices[0]
    if Section in getattr(declared, "__mro__", ()):
        return read_section(declared, given, path=path)
    notes = getattr(declared, "__metadata__", ())
    try:
        for reader in filter(callable, notes):
            return reader(given)
        return msgspec.convert(given, declared)
    except ValueError as error:
        must_be = _description(declared, notes) if isinstance(error, msgspec.ValidationError) else str(error)
        or_none = ", or None" if NoneType in choices else ""
        shown = type(given).__name__ if SECRET in notes else repr(given)
        raise ConfigurationError(f"{path} must be {must_be}{or_none}, not {shown}") from None


def _description(kind: Any, notes: tuple[Any, ...]) -> str:
    for note in notes:
        if isinstance(note, Meta):
            return note.description or f"a whole number from {note.ge} to {note.le}"
    return f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else "True or False"


Text = Annotated[str, Meta(min_length=1, description="a string that is not empty")]
Names = Annotated[tuple[Text, ...], Meta(description="a list of strings")]
Texts = Annotated[Mapping[str, str], Meta(description="a dict of strings to strings")]


def text(value: Any) -> str:
    """Read a non-empty string."""
    return msgspec.convert(value, Text)


def secret_text(value: Any) -> str:
    """Read a non-empty string without the line breaks at its end, since files with secrets end with one."""
    return text(value.rstrip("\r\n") if isinstance(value, str) else value)


def secret_pair(value: Any) -> tuple[str, str]:
    """Read two secrets that belong together, such as a user and a password."""
    one, other = msgspec.convert(value, tuple[str, str])
    return secret_text(one), secret_text(other)


def names(value: Any) -> tuple[str, ...]:
    """Read a list of strings."""
    return msgspec.convert(value, Names)


def duration(value: Any, *, zero: bool = False) -> timedelta:
    """Read a timedelta or a number of seconds above zero, or with ``zero`` from zero on, up to ten years."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 315_360_000:
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= timedelta(days=3650) or not (zero or value):
        least = "zero or more" if zero else "more than zero"
        raise ValueError(f"a timedelta or a number of seconds, {least}, at most ten years")
    return value


Duration = Annotated[timedelta, duration]
DurationOrZero = Annotated[timedelta, partial(duration, zero=True)]
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def log_level(value: Any) -> str:
    """Read the name of a log level in any case, including "warn"."""
    level = value.upper() if isinstance(value, str) else ""
    level = "WARNING" if level == "WARN" else level
    if level not in LEVELS:
        raise ValueError("debug, info, warning, error or critical")
    return level
