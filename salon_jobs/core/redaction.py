"""Hides the values of a payload whose keys say that nobody shall read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

HIDDEN: Final = "***"
# Hyphens in keys are read as underscores.
SENSITIVE: Final = (
    "*password*", "*passwd*", "*passphrase*", "*secret*", "*token*", "authorization", "*api_key*", "*apikey*",
    "*private_key*", "*credential*", "cookie", "set_cookie", "*session_key*", "*card_number*", "cvv", "cvc",
)  # fmt: skip


def redacted(value: Any, patterns: Sequence[str]) -> Any:
    """Return JSON with ``***`` for the value of every key that matches a pattern, at any depth; the rest as it is.

    Patterns are names in which ``*`` stands for anything; upper and lower case are alike, and so are ``-`` and ``_``.
    """
    return _redacted(value, _compiled(tuple(patterns))) if patterns else value


def _redacted(value: Any, sensitive: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        items: dict[str, Any] = {**value}
        return {key: HIDDEN if _is(key, sensitive) else _redacted(each, sensitive) for key, each in items.items()}
    if isinstance(value, list):
        items_of: list[Any] = [*value]
        return [_redacted(each, sensitive) for each in items_of]
    return value


def _is(key: str, sensitive: re.Pattern[str]) -> bool:
    return sensitive.match(key.lower().replace("-", "_")) is not None


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern.lower().replace("-", "_")) for pattern in patterns))
