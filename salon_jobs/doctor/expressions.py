"""Reads conditions of policies, so that what was written can be compared with what the server shows of it.

The server does not keep the text of a condition: it shows one of its own, with casts, parentheses and aliases added.
Both are read into the same tree. Only what our conditions are made of is read; anything else is not guessed at.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

Tree: TypeAlias = tuple[Any, ...]

_TOKENS: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") | (?P<number>\d+(?:\.\d+)?)
    | (?P<word>[A-Za-z_][\w$]*) | (?P<sign>::|<>|!=|<=|>=|[=<>()\[\],.]))""",
    re.VERBOSE,
)
_COMPARISONS: Final = {"=", "<>", "!=", "<", ">", "<=", ">="}
_LITERAL_TYPES: Final = {"text", "character varying", "varchar"}
_LITERALS: Final = {"true", "false", "null"}
_TYPE_WORDS: Final = {"varying", "precision", "with", "without", "time", "zone"}


class Unreadable(ValueError):
    """The condition holds something that is not read here."""


def same_condition(declared: str | None, shown: str | None) -> bool:
    """Tell whether two conditions are the same. Raises Unreadable when the declared one can not be read.

    What the server shows and can not be read is another one: the declared one could.
    """
    if declared is None or shown is None:
        return declared is shown
    expected = read(declared)
    try:
        return read(shown) == expected
    except Unreadable:
        return False


def read(text: str) -> Tree:
    """Read a condition into a tree. Raises Unreadable."""
    reader = _Reader(text)
    tree = reader.either()
    reader.end()
    return tree


class _Reader:
    """Reads by descent, from OR down to names and literals."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKENS.match(text, at)
            if match is None or match.lastgroup is None:
                raise Unreadable(text)
            kind, piece = match.lastgroup, match[match.lastgroup]
            self._tokens.append((kind, piece.lower() if kind == "word" else piece))
            at = match.end()
        self._text, self._next = text, 0

    def either(self) -> Tree:
        """Read what OR joins."""
        return self._joined("or", self._all)

    def end(self) -> None:
        """Expect nothing more."""
        if self._next != len(self._tokens):
            raise Unreadable(self._text)

    def _all(self) -> Tree:
        return self._joined("and", self._negated)

    def _joined(self, word: str, part: Any) -> Tree:
        parts: list[Tree] = []
        while True:
            tree: Tree = part()
            parts += tree[1:] if tree[0] == word else [tree]
            if not self._takes("word", word):
                return parts[0] if len(parts) == 1 else (word, *parts)

    def _negated(self) -> Tree:
        return ("not", self._negated()) if self._takes("word", "not") else self._compared()

    def _compared(self) -> Tree:
        left = self._cast()
        if self._takes("word", "is"):
            negated = self._takes("word", "not")
            if self._takes("word", "null"):
                return ("is not null" if negated else "is null", left)
            self._expect("word", "distinct")
            self._expect("word", "from")
            tree = ("is distinct", left, self._cast())
            return ("not", tree) if negated else tree
        if self._takes("word", "in"):
            self._expect("sign", "(")
            items = self._list(")")
            return ("=", left, items[0]) if len(items) == 1 else ("any", "=", left, ("array", *items))
        kind, piece = self._peek()
        if kind != "sign" or piece not in _COMPARISONS:
            return left
        self._next += 1
        sign = "<>" if piece == "!=" else piece
        if self._takes("word", "any"):
            self._expect("sign", "(")
            array = self._cast()
            self._expect("sign", ")")
            return ("any", sign, left, array)
        return (sign, left, self._cast())

    def _cast(self) -> Tree:
        tree = self._primary()
        while self._takes("sign", "::"):
            tree = _without_plain_cast(tree, self._type())
        return tree

    def _type(self) -> str:
        kind, word = self._pop()
        if kind not in ("word", "quoted"):
            raise Unreadable(self._text)
        words = [word]
        while self._peek()[0] == "word" and self._peek()[1] in _TYPE_WORDS:
            words.append(self._pop()[1])
        name = " ".join(words)
        if self._takes("sign", "["):
            self._expect("sign", "]")
            name += "[]"
        return name

    def _primary(self) -> Tree:
        kind, piece = self._pop()
        if kind == "text":
            return ("text", piece)
        if kind == "number":
            return ("number", piece)
        if piece == "(":
            tree = self._selected() if self._takes("word", "select") else self.either()
            self._expect("sign", ")")
            return tree
        if kind == "word" and piece in _LITERALS:
            return (piece,)
        if kind == "word" and piece == "array":
            self._expect("sign", "[")
            return ("array", *self._list("]"))
        if kind not in ("word", "quoted"):
            raise Unreadable(self._text)
        return self._name(_unquoted(piece))

    def _name(self, first: str) -> Tree:
        names = [first]
        while self._takes("sign", "."):
            kind, piece = self._pop()
            if kind not in ("word", "quoted"):
                raise Unreadable(self._text)
            names.append(_unquoted(piece))
        if self._takes("sign", "("):
            return ("call", tuple(names), *self._list(")"))
        return ("name", tuple(names))

    def _selected(self) -> Tree:
        tree = self.either()
        if self._takes("word", "as"):  # the alias means nothing
            self._pop()
        return ("select", tree)

    def _list(self, closing: str) -> list[Tree]:
        items: list[Tree] = []
        if self._takes("sign", closing):
            return items
        while True:
            items.append(self.either())
            if self._takes("sign", closing):
                return items
            self._expect("sign", ",")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("", "")

    def _pop(self) -> tuple[str, str]:
        found = self._peek()
        self._next += 1
        return found

    def _takes(self, kind: str, piece: str) -> bool:
        found = self._peek() == (kind, piece)
        self._next += found
        return found

    def _expect(self, kind: str, piece: str) -> None:
        if not self._takes(kind, piece):
            raise Unreadable(self._text)


def _without_plain_cast(tree: Tree, kind: str) -> Tree:
    """Leave out the casts to text that the server adds to literals, arrays of them and columns; keep all others."""
    of, _, suffix = kind.partition("[")
    if of in _LITERAL_TYPES:
        is_literals = tree[0] == "array" and all(item[0] == "text" for item in tree[1:])
        if (suffix and is_literals) or (not suffix and tree[0] in ("text", "name")):
            return tree
    return ("cast", tree, kind)


def _unquoted(piece: str) -> str:
    return piece[1:-1].replace('""', '"') if piece.startswith('"') else piece
