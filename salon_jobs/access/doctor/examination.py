"""Comparison of a database with the declaration, and execution of the statements that fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from salon_jobs.access.bootstrap import as_member
from salon_jobs.access.doctor import objects, roles, table_parts
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.cross_store_rows import find_cross_store_rows
from salon_jobs.access.doctor.declaration import declare, declare_tables
from salon_jobs.access.doctor.session_settings import compare_settings
from salon_jobs.access.doctor.store_keys import compare_store_keys
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import FixIncomplete
from salon_jobs.db.connections import LOCK_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Drifts, and skipped checks with their reasons; ``bound_owners`` see all rows by policies, without BYPASSRLS."""

    database: str
    role: str
    drifts: tuple[Drift, ...]
    not_checked: tuple[str, ...] = ()
    bound_owners: tuple[str, ...] = ()


# The checks other than those of session settings, each with its scope: roles, one database user, or both.
_OF_ROLES: Final = (
    roles.compare_roles,
    roles.compare_memberships,
    roles.compare_containers,
    roles.compare_default_privileges,
    objects.find_undeclared_tables,
    objects.find_undeclared_views,
)
_OF_ONE_USER: Final = (roles.compare_one_user, objects.find_unmanaged_tables)
_OF_BOTH: Final = (
    objects.compare_security,
    objects.find_open_partitions,
    objects.find_distributed,
    objects.compare_tables,
    objects.compare_functions,
    objects.find_loopholes,
    table_parts.compare_parts,
)


def examine(connection: psycopg.Connection[Any], *, using: str, with_orphans: bool = True) -> Examination:
    """Compare everything in the database of an alias without changing anything. Any role may run it.

    Orphans of foreign keys and rows of two stores, which take reading the tables, are searched only if the role
    bypasses row-level security. Raises SchemaMissing if the job tables do not exist.
    """
    catalogue = Catalogue(connection, using=using)
    not_checked: list[str] = []
    with catalogue.unchanged():
        declared = declare(catalogue)
        drifts = [*compare_settings(catalogue, declared)]
        catalogue.qualify()
        of_keys = (*compare_store_keys(catalogue, declared),)
        if of_keys:  # most other drifts would follow from it
            return Examination(database=catalogue.database, role=catalogue.role, drifts=of_keys)
        for compare in (*(_OF_ONE_USER if declared.roles.one_user else _OF_ROLES), *_OF_BOTH):
            drifts += compare(catalogue, declared)
        if of_django := objects.used_by_default(catalogue, declared):
            names = ", ".join(sorted(table.name for table in of_django))
            not_checked.append(f"Django's own tables, which web and worker use by default privileges: {names}")
        try:
            if with_orphans and catalogue.sees_all_rows:
                with catalogue.unchanged():
                    drifts += [*objects.find_orphans(catalogue), *find_cross_store_rows(catalogue, declared)]
        except psycopg.errors.InsufficientPrivilege:
            catalogue.sees_all_rows = False
        if with_orphans and not catalogue.sees_all_rows:
            not_checked.append(f"orphans across foreign keys: {catalogue.role} does not see all rows; a superuser does")
    return Examination(
        database=catalogue.database,
        role=catalogue.role,
        drifts=tuple(drifts),
        not_checked=tuple(not_checked),
        bound_owners=tuple(catalogue.bound_owners),
    )


def examine_tables(connection: psycopg.Connection[Any], *, using: str) -> Examination:
    """Compare only row-level security and policies, in a few statements, at the start of a process."""
    catalogue = Catalogue(connection, using=using)
    with catalogue.unchanged():
        declared = declare_tables(catalogue)
        catalogue.qualify()
        drifts = (
            # Missing tables are for ``check_schema``.
            *(drift for drift in objects.compare_security(catalogue, declared) if drift.kind != "table"),
            *table_parts.compare_policies(catalogue, declared),
        )
    return Examination(database=catalogue.database, role=catalogue.role, drifts=drifts)


# One fix can reveal more, such as rights that a table's former owner keeps.
_ROUNDS: Final = 3


def fix(connection: psycopg.Connection[Any], *, using: str, with_orphans: bool = True) -> tuple[Drift, ...]:
    """Fix all drifts that need no decision, in one transaction; return the drifts that were fixed.

    Run it as a superuser, as a role that administers the roles, or as the migrator if no role and no owner's function
    is affected. Waits briefly for each table's lock. Raises FixIncomplete, with nothing changed, if a statement is
    refused or drifts remain.
    """
    fixed: list[Drift] = []
    drifts: list[Drift] = []
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        for _ in range(_ROUNDS):
            # A recreated key still has to be validated.
            rereads = not fixed or any(drift.kind == "foreign key" for drift in drifts)
            drifts = fixable(examine(connection, using=using, with_orphans=with_orphans and rereads).drifts)
            if not drifts:
                break
            with as_member(connection, conf.roles.names):
                # Memberships last: a role that administers the others needs its own for the rest.
                for drift in sorted(drifts, key=lambda each: each.kind == "membership"):
                    for statement in drift.fix:
                        run(connection, statement)
            fixed += drifts
        else:
            raise FixIncomplete("; ".join(map(str, drifts)))
    return tuple(fixed)


def run(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run one statement. Raises FixIncomplete with the server's message and the statement."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        raise FixIncomplete(f"{str(error).strip()}: {statement}") from error


def fixable(drifts: tuple[Drift, ...]) -> list[Drift]:
    return [drift for drift in drifts if not drift.needs_decision]
