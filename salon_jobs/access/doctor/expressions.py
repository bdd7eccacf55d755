"""Comparison of declared SQL with the server's rendering of the object created from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

# A word, or the content of a pair of parentheses.
_Part: TypeAlias = "str | list[_Part]"

_TEXT: Final = r"'(?:[^']|'')*'"
_PARTS: Final = re.compile(
    rf"""{_TEXT} | "(?:[^"]|"")*"
      | ::\s*(?:double\ precision|character\ varying|time(?:stamp)?\ with(?:out)?\ time\ zone|[\w."]+)
        (?:\(\d+(?:,\s*\d+)?\))?(?:\[\])*
      | \d+(?:\.\d+)? | [\w$]+ | [-+*/<>=~!@\#%^&|?]+ | \S""",
    re.VERBOSE,
)
# After any other name, a parenthesis begins a list, such as the arguments of a function.
_BEFORE_GROUPS: Final = frozenset(
    ("and", "any", "as", "check", "default", "else", "from", "not", "or", "select", "then", "using", "when", "where")
)
# How tightly operators bind; others are 5, casts and subscripts 6.
_BINDS: Final = {"or": 1, "and": 2, "not": 3} | dict.fromkeys(("=", "<>", "<", ">", "<=", ">=", "is", "is not"), 4)


@lru_cache(maxsize=256)  # tables of stores have the same policies
def normal_form(sql: str) -> str:
    """Return a condition or definition without the parts that the server changes when it renders one.

    These are letter case, needless parentheses, casts of literals and casts to text, the alias of a subselect, ``= ANY
    (ARRAY[…])`` for IN, BETWEEN, and the format of instants and UUIDs. Call ``Catalogue.qualify`` before. The server
    could only show a declared condition on an object that has it, and runtime roles, which compare at start, may create
    none. ``compare_parts`` checks what the server hides, such as the function behind a cast.
    """
    text = _join(_read(part[0] for part in _PARTS.finditer(sql)))
    return re.sub(rf"(\S+) between ({_TEXT}|\S+) and ({_TEXT}|\S+)", r"\1 >= \2 and \1 <= \3", text)


def _read(parts: Iterator[str]) -> list[_Part]:
    """Read up to the next closing bracket."""
    words: list[_Part] = []
    for part in parts:
        last = words[-1] if words else ""
        if part in ")]":
            break
        if part == "[":
            words.append(f"[ {_join(_read(parts))} ]")
        elif part == "(":
            inner = _read(parts)
            if last == "in":
                words[-1:] = ["=", inner[0]] if len(inner) == 1 else ["=", "any", "array", f"[ {_join(inner)} ]"]
            elif (isinstance(last, str) and last.isidentifier() and last not in _BEFORE_GROUPS) or (
                not inner or inner[0] == "select" or "," in inner
            ):
                words.append(f"( {_join(inner)} )")
            else:
                words.append(inner[0] if len(inner) == 1 else inner)
        elif part.startswith("::"):
            kind = part[2:].strip().lower()
            if isinstance(last, str) and re.fullmatch(r"'\d+'", last) and kind in ("bigint", "integer", "numeric"):
                words[-1] = last.strip("'")
            elif kind.rstrip("[]") not in ("text", "character varying", "varchar"):
                is_literal = isinstance(last, str) and (last[:1] == "'" or last[:1].isdigit())
                words += [] if is_literal else [f"::{kind}"]
        elif re.fullmatch(r"'[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}'", part):
            words.append(part.replace("-", ""))
        elif part[0] == "'":
            words.append(re.sub(r"(\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d):00'$", r"\1'", part))
        elif part[0] == '"':
            words.append(part[1:-1] if re.fullmatch("[a-z_][a-z0-9_]*", part[1:-1]) else part)
        elif part.lower() == "as" and words[:1] == ["select"]:
            next(parts, None)
        elif part.lower() == "not" and last == "is":
            words[-1] = "is not"
        else:
            words.append("<>" if part == "!=" else part.lower())
    return words


def _join(words: list[_Part]) -> str:
    """Join the words, keeping the parentheses that change the order of operations."""
    texts: list[str] = []
    for before, part, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        text = part if isinstance(part, str) else _join(part)
        if not isinstance(part, str) and (part[0], part[-1]) != ("case", "end"):
            # Next to anything but an operator (7 % 7 is 0), parentheses change nothing.
            inner, left, right = min(map(_binds, part)), _binds(before) % 7, _binds(after) % 7
            if inner < max(left, right) or inner == left > _BINDS["and"]:
                text = f"( {text} )"
        texts.append(text)
    return " ".join(texts)


def _binds(part: _Part) -> int:
    """Return how tightly an operator binds, and 7 for anything else."""
    if not isinstance(part, str) or not part:
        return 7
    if part in _BINDS:
        return _BINDS[part]
    if part[:2] == "::" or part[0] in "[.":
        return 6
    return 5 if part[0] in "-+*/<>=~!@#%^&|?" else 7
