"""Differences between the declaration and the live catalogue, and the GRANTs and REVOKEs that fix privileges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from salon_jobs.access.doctor.catalogue import PUBLIC
from salon_jobs.access.roles import identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference: what and where, what is declared and what was found, and the statements that fix it.

    ``fix`` runs as a superuser, in order. ``needs_decision``: only a person can decide whether ``fix`` is right or the
    declaration is wrong, so it never runs automatically; ``hint`` says what else to do.
    """

    kind: str
    where: str
    expected: str
    found: str
    fix: tuple[str, ...]
    needs_decision: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One privilege of one role; empty ``column``: on the whole object. ``may_grant``: WITH GRANT OPTION."""

    grantee: str
    privilege: str
    column: str = ""
    may_grant: bool = False

    @classmethod
    def of(cls, text: str) -> Right:
        """Parse a query's "grantee privilege option"."""
        grantee, privilege, option = text.rsplit(" ", 2)
        return cls(grantee, privilege, may_grant=option == "true")

    @property
    def text(self) -> str:
        """The privilege in readable form."""
        column = f" ({self.column})" if self.column else ""
        return f"{self.privilege}{column}{' WITH GRANT OPTION' if self.may_grant else ''}"


def compare_rights(on: str, where: str, expected: Iterable[Right], seen: Iterable[Right]) -> list[Drift]:
    """Return the drifts of one object, one per role. ``on`` is the object as GRANT … ON names it."""
    wanted, found = set(expected), set(seen)
    drifts: list[Drift] = []
    for grantee in sorted({right.grantee for right in wanted ^ found}):
        mine = {right for right in wanted if right.grantee == grantee}
        theirs = {right for right in found if right.grantee == grantee}
        extra, missing = theirs - mine, mine - theirs
        # Revoking a privilege on the whole object also revokes it on the columns.
        taken = {right.privilege for right in extra if not right.column}
        given = missing | {right for right in mine if right.privilege in taken}
        fix = (*_statements("REVOKE", extra, on, grantee), *_statements("GRANT", given, on, grantee))
        drifts.append(
            Drift(kind="grant", where=f"{where}, role {grantee}", expected=_shown(mine), found=_shown(theirs), fix=fix)
        )
    return drifts


def role(name: str) -> str:
    """Return a grantee for a statement."""
    return PUBLIC if name == PUBLIC else identifier(name)


def _statements(verb: str, rights: set[Right], on: str, grantee: str) -> list[str]:
    columns: dict[str, list[str]] = {}
    for right in sorted(rights):
        columns.setdefault(right.privilege, []).extend([identifier(right.column)] if right.column else [])
    whole = {right.privilege for right in rights if not right.column}
    if not columns:
        return []
    what = ", ".join(
        privilege if privilege in whole else f"{privilege} ({', '.join(names)})" for privilege, names in columns.items()
    )
    if verb == "GRANT":
        return [f"GRANT {what} ON {on} TO {role(grantee)}"]
    cascade = " CASCADE" if any(right.may_grant for right in rights) else ""
    return [f"REVOKE {what} ON {on} FROM {role(grantee)}{cascade}"]


def _shown(rights: Iterable[Right]) -> str:
    whole = [right.text for right in sorted(rights) if not right.column]
    columns: dict[str, list[str]] = {}
    for right in sorted(rights):
        if right.column:
            columns.setdefault(right.privilege, []).append(right.column)
    whole += [f"{privilege} ({', '.join(names)})" for privilege, names in columns.items()]
    return ", ".join(whole) or "nothing"
