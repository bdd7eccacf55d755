"""Checks of callers' arguments: each raises OptionInvalid naming the field, before anything reaches the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast
from uuid import UUID

from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.text import short_repr

LAST_ID: Final = 2**63 - 1
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def check_text(name: str, value: object, longest: int, *, least: int = 1) -> None:
    """Reject text that the database cannot store. Raises OptionInvalid naming the field."""
    if not isinstance(value, str) or not least <= len(value) <= longest or _UNSTORABLE.search(value):
        raise OptionInvalid(
            f"{name} must be a string of {least} to {longest} characters without NUL or lone surrogates, "
            f"not {short_repr(value)}"
        )


def one_or_several(
    takes: str, given: Any, *, longest_key: int = 0, also: Callable[[object], bool] = lambda given: False
) -> list[Any]:
    """Return the ids of one or several handles and ids, and perhaps keys or values that ``also`` accepts, as a list.

    ``takes`` lists the accepted values, for the OptionInvalid that refuses any other.
    """
    is_one = isinstance(given, int | str | bytes) or hasattr(given, "id") or not isinstance(given, Iterable)
    several = cast("Iterable[Any]", [given] if is_one else given)
    found = [getattr(each, "id", each) for each in several]
    for name in found:
        if longest_key and isinstance(name, str):
            check_text("key", name, longest_key)
        elif not is_id(name) and not also(name):
            raise OptionInvalid(f"{takes}, not {short_repr(name)}")
    return found


def is_id(value: object) -> bool:
    """Return whether a row can have this number as its id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LAST_ID


def as_uuid(value: object) -> UUID | None:
    """Return a UUID as it is, the UUID in a text, or None."""
    if isinstance(value, str):
        with suppress(ValueError):
            return UUID(value)
    return value if isinstance(value, UUID) else None


def check_id(name: str, value: object) -> None:
    """Reject a number that no row can have as its id. Raises OptionInvalid naming the field."""
    if not is_id(value):
        raise OptionInvalid(f"{name} must be a whole number from 0 to {LAST_ID}, not {short_repr(value)}")


def checked_names(name: str, values: object, longest: int) -> list[str]:
    """Return one or several names of rows as a list. Raises OptionInvalid unless rows can have all of these names."""
    if not isinstance(values, Iterable):
        raise OptionInvalid(f"{name} must be strings, not {short_repr(values)}")
    names: list[Any] = [values] if isinstance(values, (str, bytes)) else [*values]
    for each in names:
        check_text(name, each, longest)
    return names


def checked_ids(name: str, values: object) -> list[int]:
    """Return the ids of rows as a list. Raises OptionInvalid unless rows can have all of these ids."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        raise OptionInvalid(f"{name} must be whole numbers, not {short_repr(values)}")
    ids: list[Any] = [*values]
    for each in ids:
        if not is_id(each):
            raise OptionInvalid(f"{name} must be whole numbers from 0 to {LAST_ID}; {short_repr(each)} is not")
    return ids
