"""Checks of what callers pass: each raises OptionInvalid naming the field, before anything reaches the database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.text import shown

LAST_ID: Final = 2**63 - 1
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def check_text(name: str, value: object, longest: int, *, least: int = 1) -> None:
    """Reject text that the database cannot store. Raises OptionInvalid naming the field."""
    if not isinstance(value, str) or not least <= len(value) <= longest or _UNSTORABLE.search(value):
        raise OptionInvalid(
            f"{name} must be a string of {least} to {longest} characters without NUL or lone surrogates, "
            f"not {shown(value)}"
        )


def checked_ids(name: str, values: object) -> list[int]:
    """Return the numbers of rows as a list. Raises OptionInvalid unless all are numbers that rows can have."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        raise OptionInvalid(f"{name} must be whole numbers, not {shown(values)}")
    ids: list[int] = []
    each: object
    for each in values:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= LAST_ID:
            raise OptionInvalid(f"{name} must be whole numbers from 0 to {LAST_ID}; {shown(each)} is not")  # pyright: ignore[reportUnknownArgumentType]
        ids.append(each)
    return ids
