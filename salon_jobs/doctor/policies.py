"""Compares the policies of declared tables: names, commands, roles, conditions; and finds those nobody declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from salon_jobs.doctor.catalogue import PUBLIC, Catalogue, Relation
from salon_jobs.doctor.declaration import Declaration
from salon_jobs.doctor.drift import Drift
from salon_jobs.doctor.expressions import same_condition
from salon_jobs.tenancy.access import Policy
from salon_jobs.tenancy.roles import identifier


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
        """Return it for people, as CREATE POLICY says it."""
        using = f" USING ({self.using})" if self.using is not None else ""
        check = f" WITH CHECK ({self.check})" if self.check is not None else ""
        restrictive = "" if self.is_permissive else "AS RESTRICTIVE "
        return f"{restrictive}FOR {self.command} TO {', '.join(sorted(self.roles))}{using}{check}"


def compare_policies(catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration) -> Iterable[Drift]:
    """Yield policies that are missing, different or not declared."""
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
                kind="policy", where=f"policy {name} of table {table.sql}",
                expected="none" if want is None else _declared(want).text,
                seen="none" if have is None else have.text,
                mend=(*drop, *create),
            )  # fmt: skip


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
