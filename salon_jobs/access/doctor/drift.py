"""Differences between the declaration and the live catalogue, and the statements that fix owners and privileges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from salon_jobs.access.doctor.catalogue import PUBLIC, CatalogueObject, Right
from salon_jobs.access.roles import identifier


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: what and where, what is declared and what was found, and the statements that fix it.

    ``fix`` runs as a superuser, in order. ``needs_decision``: only a person can decide whether ``fix`` is right or the
    declaration is wrong, so it never runs automatically; ``hint`` says what else to do.
    """

    kind: str
    where: str
    expected: str
    found: str
    fix: tuple[str, ...] = ()
    needs_decision: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}, found {self.found}"


def compare_owner(each: CatalogueObject, owner: str) -> Iterable[Drift]:
    if each.owner != owner:
        fix = f"ALTER {each.kind} {each.name} OWNER TO {identifier(owner)}"
        yield Drift("owner", each.where, owner, each.owner, (fix,))


def compare_rights(
    each: CatalogueObject, expected: Iterable[Right], found: Iterable[Right], *, hint: str = ""
) -> Iterable[Drift]:
    """Yield the drifts of one object's rights, one per role. ``found`` are those rights that the declaration covers."""
    declared, present = set(expected), set(found)
    for grantee in sorted({right.grantee for right in declared ^ present}):
        theirs_declared = {right for right in declared if right.grantee == grantee}
        theirs_present = {right for right in present if right.grantee == grantee}
        extra = theirs_present - theirs_declared
        # Revoking a privilege on the whole object also revokes it on the columns.
        revoked = {right.privilege for right in extra if not right.column}
        missing = {right for right in theirs_declared if right not in theirs_present or right.privilege in revoked}
        to, fix = role(grantee), list[str]()
        if extra:
            cascade = " CASCADE" if any(right.may_grant for right in extra) else ""
            fix.append(f"REVOKE {_privileges(extra)} ON {each.on} FROM {to}{cascade}")
        if missing:
            fix.append(f"GRANT {_privileges(missing)} ON {each.on} TO {to}")
        where = f"{each.where}, role {grantee}"
        yield Drift("grant", where, _text(theirs_declared), _text(theirs_present), tuple(fix), hint=hint)


def role(name: str) -> str:
    """Return a grantee for a statement."""
    return PUBLIC if name == PUBLIC else identifier(name)


def _privileges(rights: Iterable[Right]) -> str:
    """Return privileges as GRANT lists them."""
    whole = {right.privilege for right in rights if not right.column}
    return ", ".join(
        [*sorted(whole), *_on_columns((right for right in rights if right.privilege not in whole), identifier)]
    )


def _text(rights: Iterable[Right]) -> str:
    whole = [
        f"{right.privilege}{' WITH GRANT OPTION' if right.may_grant else ''}"
        for right in sorted(rights)
        if not right.column
    ]
    return ", ".join([*whole, *_on_columns(rights, str)]) or "nothing"


def _on_columns(rights: Iterable[Right], quote: Callable[[str], str]) -> list[str]:
    columns: dict[str, list[str]] = {}
    for right in sorted(rights):
        if right.column:
            columns.setdefault(right.privilege, []).append(quote(right.column))
    return [f"{privilege} ({', '.join(names)})" for privilege, names in columns.items()]
