"""Reader of one nested section of ``SALON_JOBS`` into its dataclass. Every error names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from salon_jobs.core.errors import ConfigurationError, suggest

T = TypeVar("T")
# Returns the value to keep, or raises ValueError saying what it must be.
Reader = Callable[[Any], Any]


def setting(default: Any, reader: Reader, *, secret: bool = False) -> Any:
    """Declare a field of a section: its default (or default factory), and the reader that checks a given value.

    A secret is left out of errors, and of the section's repr, which a traceback with local variables would show.
    """
    metadata = {"reader": reader, "secret": secret}
    if callable(default):
        return field(default_factory=default, repr=not secret, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def read_section(kind: type[T], value: object, *, path: str, others: Mapping[str, Reader] = MappingProxyType({})) -> T:
    """Build ``kind`` from a dict with its field names in upper case. Raises ConfigurationError naming the field.

    ``others`` are readers of keys that are declared elsewhere: they are validated here, and not kept.
    """
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must be a dict, not {type(value).__name__}")
    known = {f.name.upper(): f for f in fields(cast("Any", kind))}
    read: dict[str, Any] = {}
    for key, given in cast("dict[str, Any]", value).items():
        if key in others:
            others[key](given)
            continue
        if key not in known:
            keys = sorted({*known, *others})
            raise ConfigurationError(f"{path} has an unknown key {key!r}; {suggest(str(key), keys)}")
        at = f"{path}[{key!r}]"
        try:
            read[known[key].name] = known[key].metadata["reader"](given)
        except ValueError as error:
            shown = type(given).__name__ if known[key].metadata["secret"] else repr(given)
            raise ConfigurationError(f"{at} must be {error}, not {shown}") from None
    return kind(**read)


def optional(read: Reader) -> Reader:
    """Read None, or what the reader accepts."""

    def read_optional(value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or None") from None

    return read_optional


def text(value: Any) -> str:
    """Read a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError("a string that is not empty")
    return value


def secret_text(value: Any) -> str:
    """Read a non-empty string without line breaks at its end: a file that a secret is read from ends with one."""
    return text(value.rstrip("\r\n") if isinstance(value, str) else value)


def matching(pattern: str, what: str) -> Reader:
    """Read a string of this form; errors say ``what`` it must be."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(what)
        return value

    return read


def flag(value: Any) -> bool:
    """Read True or False."""
    if value is not True and value is not False:
        raise ValueError("True or False")
    return bool(value)


def count(least: int, most: int) -> Reader:
    """Read a whole number from ``least`` to ``most``."""

    def read(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return read


def duration(value: Any, *, zero: bool = False) -> timedelta:
    """Read a timedelta or a number of seconds above zero, or with ``zero`` from zero on, up to ten years."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 315_360_000:
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= timedelta(days=3650) or not (zero or value):
        least = "zero or more" if zero else "more than zero"
        raise ValueError(f"a timedelta or a number of seconds, {least}, at most ten years")
    return value


def names(value: Any) -> tuple[str, ...]:
    """Read a list of strings."""
    items: tuple[Any, ...] = tuple(value) if type(value) in (list, tuple) else (None,)
    if not all(isinstance(name, str) and name for name in items):
        raise ValueError("a list of strings")
    return items


def one_of(*choices: str) -> Reader:
    """Read one of these strings."""

    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return read


LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def log_level(value: Any) -> str:
    """Read the name of a log level in any case, including "warn"."""
    level = value.upper() if isinstance(value, str) else ""
    level = "WARNING" if level == "WARN" else level
    if level not in LEVELS:
        raise ValueError("debug, info, warning, error or critical")
    return level


def pair(first: str, second: str, *, each: Reader = text) -> Reader:
    """Read two strings that belong together; errors call them ``first`` and ``second``."""

    def read(value: Any) -> Any:
        try:
            one, other = map(each, value if type(value) in (list, tuple) else ())
        except ValueError:
            raise ValueError(f"a pair ({first}, {second}) of strings") from None
        return one, other

    return read


def texts(value: Any) -> Mapping[str, str]:
    """Read a dict of strings to strings."""
    items = cast("dict[str, str]", value) if isinstance(value, dict) else {}
    if items is not value or not all(type(word) is str for pair in items.items() for word in pair):
        raise ValueError("a dict of strings to strings")
    return dict(items)
