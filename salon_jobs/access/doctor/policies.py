"""Comparison of row-level security policies with what is declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from salon_jobs.access.doctor.catalogue import PUBLIC, Catalogue, Relation
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift
from salon_jobs.access.policies import Policy
from salon_jobs.access.roles import identifier

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
    """Error for a condition with a construct that this parser does not support."""


def same_condition(declared: str | None, shown: str | None) -> bool:
    """Return whether two conditions are the same. Raises Unreadable when the declared one cannot be parsed.

    If the server's version cannot be parsed, they differ: the declared one could.
    """
    if declared is None or shown is None:
        return declared is shown
    expected = read(declared)
    try:
        return read(shown) == expected
    except Unreadable:
        return False


def read(text: str) -> Tree:
    """Parse a condition into a tree. Raises Unreadable."""
    reader = _Reader(text)
    tree = reader.either()
    reader.end()
    return tree


class _Reader:
    """Recursive descent parser, from OR down to names and literals."""

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
        """Parse operands joined by OR."""
        return self._joined("or", self._all)

    def end(self) -> None:
        """Require the end of the text."""
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
        if self._takes("word", "as"):  # the alias has no meaning
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
    """Remove the casts to text that the server adds to literals, arrays of them and columns; keep all others."""
    of, _, suffix = kind.partition("[")
    if of in _LITERAL_TYPES:
        is_literals = tree[0] == "array" and all(item[0] == "text" for item in tree[1:])
        if (suffix and is_literals) or (not suffix and tree[0] in ("text", "name")):
            return tree
    return ("cast", tree, kind)


def _unquoted(piece: str) -> str:
    return piece[1:-1].replace('""', '"') if piece.startswith('"') else piece


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    command: str
    is_permissive: bool
    roles: frozenset[str]
    using: str | None
    check: str | None

    @property
    def text(self) -> str:
        """The policy in readable form, as in CREATE POLICY."""
        using = f" USING ({self.using})" if self.using is not None else ""
        check = f" WITH CHECK ({self.check})" if self.check is not None else ""
        restrictive = "" if self.is_permissive else "AS RESTRICTIVE "
        return f"{restrictive}FOR {self.command} TO {', '.join(sorted(self.roles))}{using}{check}"


def compare_policies(catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration) -> Iterable[Drift]:
    """Yield policies that are missing, different or undeclared."""
    seen = _policies(catalogue, relations)
    for access in (*declared.protected, *declared.plain):
        table = relations.get(access.table)
        if table is None:
            continue
        found = {policy.name: policy for policy in seen.get(table.oid, ())}
        expected = {policy.name: policy for policy in access.policies}
        for name in sorted(found.keys() | expected.keys()):
            have, want = found.get(name), expected.get(name)
            if want is not None and have is not None and _is_same(want, have):
                continue
            drop = [f"DROP POLICY {identifier(name)} ON {table.sql}"] if have is not None else []
            create = [want.create(table.identifier).as_string()] if want is not None else []
            yield Drift(
                kind="policy",
                where=f"policy {name} of table {table.sql}",
                expected="none" if want is None else _declared(want).text,
                found="none" if have is None else have.text,
                fix=(*drop, *create),
            )


def _is_same(want: Policy, have: _Found) -> bool:
    declared = _declared(want)
    return (
        (declared.command, declared.is_permissive, declared.roles) == (have.command, have.is_permissive, have.roles)
        and same_condition(declared.using, have.using)
        and same_condition(declared.check, have.check)
    )


def _declared(policy: Policy) -> _Found:
    using, check = (None if each is None else each.as_string() for each in (policy.using, policy.check))
    return _Found(policy.name, policy.command, True, frozenset(policy.roles or (PUBLIC,)), using, check)


def _policies(catalogue: Catalogue, relations: Mapping[str, Relation]) -> dict[int, list[_Found]]:
    rows = catalogue.rows(
        f"""
        SELECT p.polrelid::bigint, p.polname, p.polcmd::text, p.polpermissive,
               ARRAY(SELECT coalesce(r.rolname, '{PUBLIC}') FROM unnest(p.polroles) AS o (oid)
                       LEFT JOIN pg_roles r ON r.oid = o.oid)::text[],
               pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
          FROM pg_policy p WHERE p.polrelid = ANY (%s::bigint[]::oid[])
        """,
        [table.oid for table in relations.values()],
    )
    found: dict[int, list[_Found]] = {}
    for oid, name, command, is_permissive, roles, using, check in rows:
        policy = _Found(name, _COMMANDS[command], is_permissive, frozenset(roles), using, check)
        found.setdefault(oid, []).append(policy)
    return found


_COMMANDS = {"*": "ALL", "r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}
