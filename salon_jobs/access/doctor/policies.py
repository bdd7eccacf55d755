"""What is checked about row-level security policies.

Runtime roles compare at start, and may create nothing, not even a temporary table on which the server could show what a
declared condition looks like. So both conditions are read here: exactly the forms that ``access.policies`` declares, in
whatever casts and parentheses the server writes them. Any other form is another condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from salon_jobs.access.doctor.catalogue import PUBLIC, Catalogue, Relations
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift
from salon_jobs.access.policies import Policy
from salon_jobs.access.roles import identifier


class _Policy(NamedTuple):
    """A policy of the catalogue, or a declared one in the same form."""

    name: str
    command: str
    is_permissive: bool
    roles: list[str]
    using: str | None
    check: str | None

    @property
    def text(self) -> str:
        """The policy in readable form, as in CREATE POLICY."""
        using = f" USING ({self.using})" if self.using is not None else ""
        check = f" WITH CHECK ({self.check})" if self.check is not None else ""
        restrictive = "" if self.is_permissive else "AS RESTRICTIVE "
        return f"{restrictive}FOR {self.command} TO {', '.join(self.roles)}{using}{check}"


def compare_policies(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield policies that are missing, different or undeclared."""
    by_table: dict[int, dict[str, _Policy]] = {relation.oid: {} for relation in relations.values()}
    for oid, *columns in catalogue.rows("policies", tables=list(by_table)):
        by_table[oid][columns[0]] = _Policy(*columns)
    for access in declared.tables:
        if access.table not in relations:
            continue
        table = relations[access.table]
        present = by_table[table.oid]
        expected = {policy.name: policy for policy in access.policies}
        for name in sorted(present.keys() | expected.keys()):
            found, policy = present.get(name), expected.get(name)
            declares = None if policy is None else _declared(policy)
            if found is not None and declares is not None and _is_same(declares, found):
                continue
            fix = [] if found is None else [f"DROP POLICY {identifier(name)} ON {table.sql}"]
            fix += [] if policy is None else [policy.create(table.identifier).as_string()]
            want, have = ("none" if each is None else each.text for each in (declares, found))
            yield Drift("policy", f"policy {name} of table {table.sql}", want, have, tuple(fix))


def _declared(policy: Policy) -> _Policy:
    using, check = (None if each is None else each.as_string() for each in (policy.using, policy.check))
    return _Policy(policy.name, policy.command, True, sorted(policy.roles) or [PUBLIC], using, check)


def _is_same(declared: _Policy, found: _Policy) -> bool:
    return (
        declared[:4] == found[:4]
        and same_condition(declared.using, found.using)
        and same_condition(declared.check, found.check)
    )


def same_condition(declared: str | None, shown: str | None) -> bool:
    """Return whether two conditions are the same. Raises Unreadable when the declared one cannot be read.

    If the server's version cannot be read, they differ: the declared one could.
    """
    if declared is None or shown is None:
        return declared is shown
    expected = read(declared)
    try:
        return read(shown) == expected
    except Unreadable:
        return False


class Unreadable(ValueError):
    """Error for a condition in a form that is never declared."""


Tree: TypeAlias = tuple[Any, ...]
_TOKEN: Final = re.compile(r"""\s*('(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][\w$]*|::|[=(),.\[\]])\s*""")
_LITERAL_TYPES: Final = {"text", "character varying", "varchar"}
_TYPE_WORDS: Final = {"varying", "precision", "with", "without", "time", "zone"}


def read(text: str) -> Tree:
    """Parse a condition into a tree. Raises Unreadable."""
    reader = _Reader(text)
    tree = reader.condition()
    reader.expect("")
    return tree


class _Reader:
    """Recursive descent parser, from AND down to names and literals. Texts and quoted names keep their quotes."""

    def __init__(self, text: str) -> None:
        self._text = text
        tokens = _TOKEN.findall(text)
        if "".join(tokens) != _TOKEN.sub(r"\1", text):
            raise Unreadable(text)
        self._tokens = [token if token[0] in "'\"" else token.lower() for token in tokens]

    def condition(self) -> Tree:
        parts: list[Tree] = []
        while True:
            part = self._comparison()
            parts += part[1:] if part[0] == "and" else [part]
            if not self._takes("and"):
                return parts[0] if len(parts) == 1 else ("and", *parts)

    def expect(self, token: str) -> None:
        """Require a token; the empty one is the end."""
        if not self._takes(token):
            raise Unreadable(self._text)

    def _comparison(self) -> Tree:
        left = self._cast()
        if self._takes("in"):
            self.expect("(")
            items = self._list(")")
            return ("=", left, items[0]) if len(items) == 1 else ("any", left, ("array", *items))
        if not self._takes("="):
            return left
        if not self._takes("any"):
            return ("=", left, self._cast())
        self.expect("(")
        array = self._cast()
        self.expect(")")
        return ("any", left, array)

    def _cast(self) -> Tree:
        tree = self._primary()
        while self._takes("::"):
            tree = _without_plain_cast(tree, self._type())
        return tree

    def _type(self) -> str:
        words = [self._name()]
        while self._peek() in _TYPE_WORDS:
            words.append(self._name())
        is_array = self._takes("[")
        if is_array:
            self.expect("]")
        return " ".join(words) + "[]" * is_array

    def _primary(self) -> Tree:
        if self._peek().startswith("'"):
            return ("text", self._pop())
        if self._takes("("):
            tree = ("select", self.condition()) if self._takes("select") else self.condition()
            if self._takes("as"):  # the alias has no meaning
                self._name()
            self.expect(")")
            return tree
        if self._takes("array"):
            self.expect("[")
            return ("array", *self._list("]"))
        if self._peek() in ("true", "false", "null"):
            return (self._pop(),)
        names = [self._name()]
        while self._takes("."):
            names.append(self._name())
        return ("call", names, *self._list(")")) if self._takes("(") else ("name", names)

    def _list(self, closing: str) -> list[Tree]:
        items: list[Tree] = []
        while not self._takes(closing):
            if items:
                self.expect(",")
            items.append(self.condition())
        return items

    def _name(self) -> str:
        token = self._pop()
        if token[:1] == '"':
            return token[1:-1].replace('""', '"')
        if not token.isidentifier():
            raise Unreadable(self._text)
        return token

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _pop(self) -> str:
        return self._tokens.pop(0) if self._tokens else ""

    def _takes(self, token: str) -> bool:
        takes = self._peek() == token
        if takes:
            self._pop()
        return takes


def _without_plain_cast(tree: Tree, kind: str) -> Tree:
    """Remove the casts to text that the server adds to literals, arrays of them and columns; keep all others."""
    of, _, suffix = kind.partition("[")
    if of in _LITERAL_TYPES:
        is_literals = tree[0] == "array" and all(item[0] == "text" for item in tree[1:])
        if (suffix and is_literals) or (not suffix and tree[0] in ("text", "name")):
            return tree
    return ("cast", tree, kind)
