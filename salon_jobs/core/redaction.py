"""Redaction of payload values whose keys mark them as secret."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

HIDDEN: Final = "***"
UNREADABLE: Final = "(not JSON, and it names a value that REDACT hides)"
TOO_DEEP: Final = "(nested too deep to be shown)"
_DEEPEST: Final = 100
SENSITIVE: Final = (
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*secret*",
    "*token*",
    "authorization",
    "*api_key*",
    "*private_key*",
    "*credential*",
    "cookie",
    "set_cookie",
    "*session_key*",
    "*card_number*",
    "cvv",
    "cvc",
)
_JOINTS: Final = str.maketrans("", "", "-_ ")


def redacted(value: Any, patterns: Sequence[str]) -> Any:
    """Return JSON in which ``***`` replaces the value of every key that matches a pattern, at any depth.

    Anything deeper than a hundred levels is hidden without being searched. Patterns are names in which ``*`` stands for
    anything; ``api_key`` also matches ``apiKey``, ``API-Key`` and ``api key``.
    """
    return _redacted(value, _compiled(tuple(patterns)), 0)


def redacted_text(text: str, patterns: Sequence[str]) -> Any:
    """Return the redacted content of a JSON text; other text unchanged, unless it names something to hide."""
    try:
        return redacted(json.loads(text), patterns)
    except (ValueError, RecursionError):
        names = (max(re.split(r"[*?\[\]]", _bare(pattern)), key=len) for pattern in patterns)
        bare_text = _bare(text)
        return UNREADABLE if any(name in bare_text for name in names) else text


def _redacted(value: Any, sensitive: re.Pattern[str], depth: int) -> Any:
    if isinstance(value, dict | list) and depth > _DEEPEST:
        return TOO_DEEP
    if isinstance(value, dict):
        items: dict[str, Any] = {**value}
        return {
            key: HIDDEN if sensitive.match(_bare(key)) else _redacted(each, sensitive, depth + 1)
            for key, each in items.items()
        }
    if isinstance(value, list):
        items_of: list[Any] = [*value]
        return [_redacted(each, sensitive, depth + 1) for each in items_of]
    return value


def _bare(name: str) -> str:
    return name.lower().translate(_JOINTS)


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    written = (translate(_bare(pattern)) for pattern in patterns)
    return re.compile("|".join(written) if patterns else r"(?!)")
