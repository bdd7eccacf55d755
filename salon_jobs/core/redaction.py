"""Redaction of payload values whose keys mark them as secret, and of secrets in the texts of errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final, cast

HIDDEN: Final = "***"
UNREADABLE: Final = "(not JSON, and it names a value that REDACT hides)"
TOO_DEEP: Final = "(nested too deep to be shown)"
_DEEPEST: Final = 100
SENSITIVE: Final = (
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*passcode*",
    "*pwd",
    "*secret*",
    "*token*",
    "*jwt",
    "bearer",
    "authorization",
    "proxy_authorization",
    "http_authorization",
    "*api_key*",
    "*private_key*",
    "*access_key*",
    "*account_key*",
    "*signing_key*",
    "*encryption_key*",
    "*credential*",
    "cookie",
    "cookies",
    "set_cookie",
    "http_cookie",
    "*session_key*",
    "*session_id*",
    "*dsn",
    "*database_url*",
    "*db_url*",
    "*connection_string*",
    "*otp",
    "*one_time_code*",
    "*card_number*",
    "cvv",
    "cvc",
)
_JOINTS: Final = str.maketrans("", "", "-_ ")

# Where ``without_secrets`` finds its patterns: core does not read settings.
_sources: Final[list[Callable[[], Sequence[str]]]] = []


def set_pattern_source(read_patterns: Callable[[], Sequence[str]]) -> None:
    """Set the source of the patterns that ``without_secrets`` hides."""
    _sources[:] = [read_patterns]


def redacted(value: Any, patterns: Sequence[str]) -> Any:
    """Return JSON in which ``***`` replaces the value of every key that matches a pattern, at any depth.

    Anything deeper than a hundred levels is hidden without being searched. Patterns are names in which ``*`` stands for
    anything; ``api_key`` also matches ``apiKey``, ``API-Key`` and ``api key``.
    """
    return _redacted(value, _compiled(tuple(patterns)), 0)


def unredacted(edited: Any, stored: Any, patterns: Sequence[str]) -> Any:
    """Return edited JSON with its stored values back in place of the ``***`` that were left as ``redacted`` wrote them.

    In a list only in an unchanged item. Raises ValueError for any other ``***``, which cannot be meant.
    """
    return _unredacted(edited, stored, redacted(stored, patterns))


def _unredacted(edited: Any, stored: Any, shown: Any) -> Any:
    if edited == shown:
        return edited if shown == stored else stored
    if isinstance(edited, dict) and isinstance(shown, dict):
        items: dict[str, Any] = {**edited}
        hidden: dict[str, Any] = {**shown}
        return {key: _unredacted(each, stored.get(key), hidden.get(key)) for key, each in items.items()}
    if isinstance(edited, list) and isinstance(shown, list):
        now: list[Any] = [*edited]
        was: list[Any] = [*shown]
        same = [number < len(was) and each == was[number] for number, each in enumerate(now)]
        return [stored[at] if same[at] else _unredacted(each, None, None) for at, each in enumerate(now)]
    if f'"{HIDDEN}"' in (text := json.dumps(edited)) or f'"{TOO_DEEP}"' in text:
        raise ValueError(f"{HIDDEN} stands for a value that is hidden here, and was left elsewhere: write the value")
    return cast("Any", edited)


def redacted_text(text: str, patterns: Sequence[str]) -> Any:
    """Return the redacted content of a JSON text; other text unchanged, unless it names something to hide."""
    try:
        return redacted(json.loads(text), patterns)
    except (ValueError, RecursionError):
        return text if next(_named(text, _compiled(tuple(patterns))), None) is None else UNREADABLE


def without_secrets(text: str, *, code: bool = False) -> str:
    """Return the text of an error without the values of names that REDACT hides.

    Also hides passwords in URLs, bearer tokens and JWTs under any name. ``code`` is source code, in which only literals
    have values.
    """
    try:
        patterns = tuple(_sources[0]()) if _sources else SENSITIVE
    except Exception:  # settings that cannot be read are reported elsewhere
        patterns = SENSITIVE
    if not patterns:
        return text
    if code:
        text = _IN_QUOTES.sub(lambda found: without_secrets(found[0]), text)
    text = _BY_SHAPE.sub(lambda found: f"{found['url'] or found['scheme'] or ''}{HIDDEN}{found['at'] or ''}", text)
    parts: list[str] = []
    end = 0
    for at in _named(text, _compiled(patterns)):
        first, last = _value_of(text, at, code=code) if at >= end else (0, 0)
        if first < last:
            parts += [text[end:first], HIDDEN]
            end = last
    return "".join((*parts, text[end:]))


_BY_SHAPE: Final = re.compile(
    r"""(?P<url>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)(?!\d{1,5}(?:[/?\s]|$))\S*(?P<at>@)
    |(?P<scheme>\bbearer\s+)(?!(?:token|auth\w*|scheme|header|is|was|has|not)\b)[^\s"'`,;)\]}]{3,}
    |\beyJ[\w-]{8,}\.[\w.-]+""",
    re.VERBOSE | re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W_][\w-]*")
# The name of an exception's class before its message, recognized by its end, since ``AccessToken: x`` is a secret.
_CLASS: Final = re.compile(
    r"[A-Z]\w*(?:Error|Exception|Warning|Expired|Invalid|Missing|Mismatch|NotFound|DoesNotExist|Required|Refused"
    r"|Rejected|Revoked|Denied|Unauthorized|Failed|Failure|Exceeded|Unavailable)(?=:\s)"
)
_JOINED: Final = re.compile(r"""["'`\])}\\]{0,4}[ \t]{0,3}(?P<by>=>|->|[=:]{1,2}|>|,|\b(?:is|was)\b)?\s{0,3}""")
_LITERAL: Final = re.compile(r"""[bruf]{0,2}(?P<quote>\\?["'`])(?P<value>(?:(?!(?P=quote))(?:\\.|.))*)""", re.I | re.S)
_IN_QUOTES: Final = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))(?:\\.|[^\n]))*""")
_REST_OF_LINE: Final = re.compile(r"[^\n]+")
_UNQUOTED: Final = re.compile(r"(?:(?:bearer|basic|digest)\s+)?\S+", re.I)
# Without a sign between them, the word after a name is a value if it is long or has a digit.
_UNMISTAKABLE: Final = re.compile(r"(?=\S*\d)\S{4,}(?: \d[\d-]*)*|\S{24,}")


def _value_of(text: str, at: int, *, code: bool) -> tuple[int, int]:
    """Return where the value of the name that ends at this place begins and ends; the same place twice if it has none.

    The value is quoted, up to the quote that ends it; or it is the rest of the line, after a colon or if it begins with
    a bracket; or after another sign, it ends at white space.
    """
    joined = _JOINED.match(text, at)
    assert joined is not None  # noqa: S101 - all its parts are optional
    by, at = joined["by"], joined.end()
    if joined.end() == joined.start() or (code and by in (None, ",")):
        return at, at
    if literal := _LITERAL.match(text, at):
        return literal.span("value")
    if code or by == ",":
        return at, at
    if by in (None, "is", "was"):
        kind = _UNMISTAKABLE
    elif by == ":" or text[at : at + 1] in ("[", "(", "{", "<"):
        kind = _REST_OF_LINE
    else:
        kind = _UNQUOTED
    found = kind.match(text, at)
    return (at, at) if found is None else found.span()


def _named(text: str, sensitive: re.Pattern[str]) -> Iterator[int]:
    """Yield where each name to hide ends in the text; a name is one word or two."""
    before = None
    for word in _WORD.finditer(text):
        if sensitive.match(_bare(word[0])):
            if not _CLASS.match(text, word.start()):
                yield word.end()
            before = None
            continue
        if (
            before is not None
            and word.start() == before.end() + 1
            and text[before.end()] == " "
            and sensitive.match(_bare(text[before.start() : word.end()]))
        ):
            yield word.end()
        before = word


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
