"""Declared rights, policies, tables, functions and triggers, and their SQL for migrations, doctor and conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pgtrigger import features

from salon_jobs.core.rights import ALL_ROWS

PUBLIC: Final = "PUBLIC"


def identifier(*names: str) -> str:
    """Quote a name and its qualifiers, which come first."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def identifiers(names: Iterable[str]) -> str:
    return ", ".join(map(identifier, names))


def literal(text: str) -> str:
    """Quote a string literal; assumes ``standard_conforming_strings`` is on, the server's default."""
    return "'" + text.replace("'", "''") + "'"


def grantee(name: str) -> str:
    """Return a role, or PUBLIC, in the form of GRANT and policies."""
    return PUBLIC if name == PUBLIC else identifier(name)


def trigger_schema() -> str | None:
    """Return the schema of the function that all pgtrigger triggers call; None for the first in the search path."""
    schema: str | None = features.schema()  # type: ignore[no-untyped-call]
    return schema or None


class Right(NamedTuple):
    """One privilege of one role; empty ``column``: on the whole object. ``may_grant``: WITH GRANT OPTION."""

    grantee: str
    privilege: str
    column: str = ""
    may_grant: bool = False


def privileges(rights: Iterable[Right]) -> str:
    """Return the privileges in the form of GRANT; one on the whole object includes its columns."""
    whole = {right.privilege for right in rights if not right.column}
    return ", ".join(
        [*sorted(whole), *on_columns((right for right in rights if right.privilege not in whole), identifier)]
    )


def on_columns(rights: Iterable[Right], quote: Callable[[str], str] = str) -> list[str]:
    """Return the privileges on columns, each with its columns."""
    columns: dict[str, list[str]] = {}
    for right in sorted(rights):
        if right.column:
            columns.setdefault(right.privilege, []).append(quote(right.column))
    return [f"{privilege} ({', '.join(names)})" for privilege, names in columns.items()]


def grants(on: str, rights: Iterable[Right]) -> list[str]:
    """Return one GRANT for each role."""
    by_role: dict[str, list[Right]] = {}
    for right in rights:
        by_role.setdefault(right.grantee, []).append(right)
    return [f"GRANT {privileges(theirs)} ON {on} TO {grantee(name)}" for name, theirs in by_role.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row-level security policy, with its conditions in SQL."""

    name: str
    command: Literal["ALL", "SELECT", "INSERT", "UPDATE", "DELETE"]
    roles: tuple[str, ...] = (PUBLIC,)
    using: str | None = None
    check: str | None = None
    is_permissive: bool = True

    @property
    def text(self) -> str:
        """The policy in the form of CREATE POLICY."""
        using = "" if self.using is None else f" USING ({self.using})"
        check = "" if self.check is None else f" WITH CHECK ({self.check})"
        restrictive = "" if self.is_permissive else "AS RESTRICTIVE "
        return f"{restrictive}FOR {self.command} TO {', '.join(map(grantee, sorted(self.roles)))}{using}{check}"

    def create(self, table: str) -> str:
        return f"CREATE POLICY {identifier(self.name)} ON {table} {self.text}"

    def drop(self, table: str) -> str:
        return f"DROP POLICY IF EXISTS {identifier(self.name)} ON {table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """Everything declared for one table. ``force`` applies row-level security to the owner too.

    ``reads`` are other tables that the conditions of its policies read. ``takes_keys``: roles that insert may take the
    next key of an identity column beforehand.
    """

    table: str
    policies: tuple[Policy, ...] = ()
    rights: tuple[Right, ...] = ()
    is_protected: bool = True
    force: bool = True
    reads: tuple[str, ...] = ()
    takes_keys: bool = False

    @property
    def inserting(self) -> list[str]:
        """Roles that may insert: an identity column needs no more, a serial one also needs its sequence."""
        return list(dict.fromkeys(right.grantee for right in self.rights if right.privilege == "INSERT"))

    def install(self, roles: Sequence[str]) -> list[str]:
        """Return the statements that leave PUBLIC and ``roles`` the declared rights, and recreate each policy.

        Without roles (one database user), nothing is granted or revoked.
        """
        table = identifier(self.table)
        if roles:
            statements = [*self._revoke(roles), *grants(table, self.rights)]
            if self.inserting:
                statements.append(
                    self._on_sequences(
                        "ai" if self.takes_keys else "a", "GRANT USAGE", f"TO {identifiers(self.inserting)}"
                    )
                )
        else:
            statements = []
        statements += [make for policy in self.policies for make in (policy.drop(table), policy.create(table))]
        switches = ["ENABLE"] * self.is_protected + ["FORCE"] * (self.is_protected and self.force)
        return [*statements, *(f"ALTER TABLE {table} {switch} ROW LEVEL SECURITY" for switch in switches)]

    def remove(self, roles: Sequence[str], *, defaults: Sequence[str] = ()) -> list[str]:
        """Return the statements that undo ``install``, and give ``defaults`` the privileges of a new table."""
        table = identifier(self.table)
        switches = ["NO FORCE", "DISABLE"] * self.is_protected
        return [
            *(f"ALTER TABLE {table} {switch} ROW LEVEL SECURITY" for switch in switches),
            *(policy.drop(table) for policy in self.policies),
            *(self._revoke(roles) if roles else []),
            *grants(table, (Right(role, privilege) for role in defaults for privilege in ALL_ROWS)),
            *([self._on_sequences("ai", "GRANT USAGE, SELECT", f"TO {identifiers(defaults)}")] if defaults else []),
        ]

    def _revoke(self, roles: Sequence[str]) -> list[str]:
        """Return the statements that revoke everything on the table and its own sequences from PUBLIC and ``roles``."""
        of = f"FROM {', '.join(map(grantee, (PUBLIC, *roles)))}"
        return [f"REVOKE ALL ON {identifier(self.table)} {of}", self._on_sequences("ai", "REVOKE ALL", of)]

    def _on_sequences(self, kinds: str, verb: str, whom: str) -> str:
        """Return a grant or revoke on the sequences of columns: ``a`` for serial, ``i`` for identity columns."""
        # Without a percent sign: Django removes constraints with (empty) parameters.
        return (
            "DO $$ DECLARE s regclass; BEGIN FOR s IN SELECT c.oid FROM pg_depend d JOIN pg_class c ON c.oid = d.objid "
            "WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND c.relkind = 'S' "
            f"AND d.refobjid = {literal(identifier(self.table))}::regclass AND strpos('{kinds}', d.deptype::text) > 0 "
            f"LOOP EXECUTE '{verb} ON SEQUENCE ' || s || {literal(f' {whom}')}; END LOOP; END $$"
        )


_DEFINITION: Final = re.compile(
    r"LANGUAGE (?P<language>\w+)(?P<options>[^$]*?)\s*AS \$body\$(?P<body>.*)\$body\$", re.DOTALL
)
_ARGUMENTS: Final = re.compile(r"FUNCTION [^(]+\((.*?)\)\s*(?:RETURNS|LANGUAGE)\b", re.DOTALL)
_SETTING: Final = re.compile(r"\bSET (\w+) = ((?:(?! SET ).)+)")


class Trigger(NamedTuple):
    """A trigger of a table, with its CREATE statement; ``comment`` is pgtrigger's own."""

    name: str
    schema: str
    table: str
    create: str
    comment: str = ""

    @property
    def drop(self) -> str:
        return f"DROP TRIGGER IF EXISTS {self.name} ON {identifier(self.schema, self.table)}"

    def replace(self) -> list[str]:
        """Return the statements that create or replace it."""
        # PostgreSQL cannot replace constraint triggers.
        drop = [] if self.create.startswith("CREATE OR REPLACE") else [self.drop]
        on = f"ON TRIGGER {self.name} ON {identifier(self.schema, self.table)}"
        comment = [f"COMMENT {on} IS {literal(self.comment)}"] if self.comment else []
        return [*drop, self.create, *comment]


def arguments_of(definition: str) -> dict[str, str]:
    """Return the names and types of a function's arguments, in their order, from its CREATE statement."""
    found = _ARGUMENTS.search(definition)
    words = [argument.split() for argument in found[1].split(",")] if found else []
    return {
        name: " ".join(kind).partition(" DEFAULT ")[0].lower() for name, *kind in filter(None, words) if name != "OUT"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAccess:
    """Everything declared for one function: its definition, its owner and its callers.

    ``definition`` is CREATE OR REPLACE FUNCTION, and ends with LANGUAGE, options and ``AS $body$``, in this order.
    ``owner`` None is the role that migrates. ``callers`` are roles, and PUBLIC may not call it; None leaves that open.
    """

    schema: str
    name: str
    definition: str
    callers: tuple[str, ...] | None = ()
    owner: str | None = None
    triggers: tuple[Trigger, ...] = ()

    @property
    def arguments(self) -> str:
        """The types of its arguments."""
        return ", ".join(arguments_of(self.definition).values())

    @property
    def signature(self) -> str:
        return f"{identifier(self.schema, self.name)}({self.arguments})"

    @property
    def rights(self) -> list[Right]:
        return [Right(caller, "EXECUTE") for caller in self.callers or ()]

    @property
    def behaviour(self) -> tuple[str, ...]:
        """Its execution: language, security, volatility and settings."""
        options = " ".join(self._parsed["options"].split())
        return (
            f"LANGUAGE {self._parsed['language']}",
            "SECURITY DEFINER" if "SECURITY DEFINER" in options else "SECURITY INVOKER",
            next((word for word in ("STABLE", "IMMUTABLE") if word in options), "VOLATILE"),
            ", ".join(f"{name}={value.strip()}" for name, value in _SETTING.findall(options)) or "no settings",
        )

    @property
    def body(self) -> str:
        return self._parsed["body"]

    @property
    def _parsed(self) -> re.Match[str]:
        parsed = _DEFINITION.search(self.definition)
        if parsed is None:
            raise ValueError(f"the definition of {self.name} is not in the form that FunctionAccess reads")
        return parsed

    def create(self) -> list[str]:
        """Return the statements, for its owner, that create or replace it and its triggers and set its callers."""
        return [
            self.definition,
            *(() if self.callers is None else (f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC",)),
            *grants(f"FUNCTION {self.signature}", self.rights),
            *(statement for trigger in self.triggers for statement in trigger.replace()),
        ]

    def drop(self) -> list[str]:
        """Return the statements that drop its triggers and itself if they exist."""
        return [*(trigger.drop for trigger in self.triggers), f"DROP FUNCTION IF EXISTS {self.signature}"]
