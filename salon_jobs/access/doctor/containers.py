"""What is checked about the database, its schemas and the server's parameters."""

from __future__ import annotations

from collections.abc import Iterable

from salon_jobs.access.doctor.catalogue import PUBLIC, CatalogueObject, Right
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, compare_owner, compare_rights
from salon_jobs.access.roles import SCHEMA


def compare_containers(objects: Iterable[CatalogueObject], declared: Declaration) -> Iterable[Drift]:
    """Yield differing owners and privileges of PUBLIC and our roles, and who else may create objects in our schema."""
    ours = {*declared.names, PUBLIC}
    for each in objects:
        rights = {right for right in each.rights if right.grantee in ours}
        creating = {right for right in each.rights if right.privilege == "CREATE"}
        of_owner = {right for right in each.rights if right.grantee == declared.owner}
        if each.kind == "DATABASE":
            if each.owner in ours:
                yield from compare_owner(each, declared.owner)
            expected = {Right(name, what) for spec, name in declared.named for what in spec.database_privileges}
            if each.owner == declared.owner:  # has all of them
                expected = {right for right in expected if right.grantee != each.owner}
            yield from compare_rights(each, expected, rights)
        elif each.kind == "SCHEMA" and each.schema == SCHEMA:
            yield from compare_owner(each, declared.owner)
            expected = {Right(name, "USAGE") for spec, name in declared.named if not spec.owns_schema}
            yield from compare_rights(each, expected, (rights | creating) - of_owner)
        elif each.kind == "SCHEMA":
            if each.owner in (*declared.runtime, *declared.owner_roles):
                yield from compare_owner(each, declared.owner)
            hint = "objects created there can pass for yours, such as tables without policies"
            yield from compare_rights(each, (), (rights & creating) - of_owner, hint=hint)
        elif each.kind == "PARAMETER":  # such as the one that disables triggers
            yield from compare_rights(each, (), rights)
