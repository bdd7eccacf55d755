"""Escape and shorten untrusted text for messages, logs and terminals."""

from __future__ import annotations

import re
from reprlib import Repr
from typing import Final

# The longest text of one error.
LONGEST_MESSAGE: Final = 4_000
# How much of a large value is first shown, in bytes.
SHOWN_AT_FIRST: Final = 65_536
# Characters that control a terminal, end a line or change the direction of text, and those that cannot be encoded.
# Joiners stay: emoji and several scripts need them.
_BEYOND_ASCII: Final = (
    "\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff"
)
_UNSEEN: Final = re.compile(f"[\x00-\x1f{_BEYOND_ASCII}]")
_UNSEEN_IN_LINES: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
_UNSEEN_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
_UNSEEN_IN_HTML: Final = re.compile(f'\\bvalue="[^"]*"|[\x00-\x08\x0b\x0e-\x1f{_BEYOND_ASCII}]')
_SHOWN: Final = 200


def visible(text: str) -> str:
    """Escape, as Python does, characters that control a terminal, end a line, or change the direction of text."""
    return text if text.isprintable() else _UNSEEN.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Escape as ``visible`` does, but keep line feeds and tabs."""
    return text if text.isprintable() else _UNSEEN_IN_LINES.sub(_escape, text)


def visible_json(text: str) -> str:
    r"""Write the same characters as ``\u`` escapes, in JSON that has escaped those below U+0020."""
    return _UNSEEN_IN_JSON.sub(_escape_json, text)


def visible_html(page: str, kept: str = "") -> str:
    """Escape as ``visible`` does in a whole page, except white space, ``kept`` and text that its forms send back."""
    return _UNSEEN_IN_HTML.sub(
        lambda found: found[0] if found[0] in kept or len(found[0]) > 1 else _escape(found), page
    )


def bounded(text: str, most: int = LONGEST_MESSAGE) -> str:
    """Shorten a longer text by its middle: our errors end with the remedy."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters left out) … {text[-half:]}"


def beginning(text: str) -> tuple[str, int]:
    """Return the beginning of a value for display, and the bytes of the whole value if it is longer, else 0."""
    if len(text) * 4 <= SHOWN_AT_FIRST:  # no character has more bytes
        return text, 0
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= SHOWN_AT_FIRST:
        return text, 0
    return encoded[:SHOWN_AT_FIRST].decode(errors="ignore"), len(encoded)


def short_repr(value: object) -> str:
    """Return a foreign value for an error: like its ``repr``, but short, even if that raises."""
    try:
        text = _REPR.repr(value)
    except Exception as fault:  # the value's own class may raise anything
        return f"<{type(value).__name__}, whose repr raises {type(fault).__name__}>"
    return visible(bounded(text, _SHOWN))


_REPR: Final = Repr()
_REPR.maxstring = _REPR.maxother = _SHOWN


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _escape_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
