"""What the server has of isolated tables, compared with what their models declare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.db import connections, transaction
from django.db.migrations.state import ProjectState
from django.test import override_settings

from salon_jobs import tenant_context
from salon_jobs.access.constraints import AccessConstraint, DatabaseForeignKey
from salon_jobs.access.operations.stores import require_store
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import StoreId
from tests.support import seen

# Of the tables whose names they are given.
_TABLES: Final = """
SELECT relname, relrowsecurity, relforcerowsecurity, ARRAY(
       SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                        (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum))
         FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY 1)
  FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%s) ORDER BY 1
"""
_CONSTRAINTS: Final = """
SELECT relname, pg_get_constraintdef(o.oid), convalidated FROM pg_constraint o JOIN pg_class c ON c.oid = conrelid
 WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%s) AND contype <> 'n' ORDER BY 1, 2
"""
_KEY: Final = """
SELECT pg_get_constraintdef(oid) LIKE %s || '%%' FROM pg_constraint
 WHERE conrelid = to_regclass(quote_ident(%s)) AND conname = %s
"""
_INDEXES: Final = """
SELECT tablename, regexp_replace(indexdef, 'INDEX \\S+ ON', 'INDEX ON') FROM pg_indexes
 WHERE schemaname = 'public' AND tablename = ANY (%s) ORDER BY 1, 2
"""
_POLICIES: Final = """
SELECT tablename, policyname, permissive, roles::text, cmd, qual, with_check FROM pg_policies
 WHERE tablename = ANY (%s) ORDER BY 1, 2
"""
# The rights of an owner who was never named in a list are those of one who has them all in it.
_RIGHTS: Final = """
SELECT relname, grantee::regrole::text, privilege_type
  FROM pg_class c, aclexplode(coalesce(relacl, acldefault('r', relowner)))
 WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%s) ORDER BY 1, 2, 3
"""
_ACCESS: Final = (_POLICIES, _RIGHTS)


@contextmanager
def migrating(mode: str) -> Iterator[None]:
    """Migrate with roles, or as the command does with one user."""
    if mode == "roles":
        yield
        return
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "ROLES": None}), require_store("migrator"):
        yield


def tables_of(state: ProjectState) -> list[str]:
    """Return the tables of all models of the state but the stores', which are there already."""
    models = state.apps.get_models(include_auto_created=True)
    return sorted({model._meta.db_table for model in models} - {"store"})


def access_to(state: ProjectState) -> list[Any]:
    """Return policies and rights of each table."""
    return [seen(query, tables_of(state)) for query in _ACCESS]


def snapshot(state: ProjectState) -> list[Any]:
    """Return what the catalogue has of each table, without the names that Django gives."""
    return [*(seen(query, tables_of(state)) for query in (_TABLES, _CONSTRAINTS, _INDEXES)), *access_to(state)]


def assert_as_declared(state: ProjectState) -> None:
    """Compare the policies of each isolated table with those that its declaration makes now, and look at its keys."""
    connection = connections["migrator"]
    tables = tables_of(state)
    unchecked = [table for table, _, is_valid in seen(_CONSTRAINTS, tables) if not is_valid]
    assert unchecked == [], "tables with keys that were not checked"
    secured = {table: (enabled, forced) for table, enabled, forced, _ in seen(_TABLES, tables)}
    statements: list[str] = []
    for model in state.apps.get_models(include_auto_created=True):
        table = model._meta.db_table
        for declared in model._meta.constraints:
            if isinstance(declared, DatabaseForeignKey):
                columns, to, to_columns = declared.reference(model)
                text = f"FOREIGN KEY ({', '.join(columns)}) REFERENCES {to._meta.db_table}({', '.join(to_columns)})"
                assert seen(_KEY, text, table, declared.name) == [(True,)], f"{table} has no key {declared.name}"
            if not isinstance(declared, AccessConstraint) or table == "store":
                continue
            protected, constraint = declared.protects(model)
            access = constraint.access(protected, conf.roles, using="migrator")
            assert secured[access.table] == (access.is_protected, access.force), access.table
            statements += access.install(conf.roles.runtime)
    found = access_to(state)
    with transaction.atomic("migrator"), connection.cursor() as cursor:
        cursor.execute(";".join(statements))
        for query, present in zip(_ACCESS, found, strict=True):
            cursor.execute(query, [tables])
            assert present == cursor.fetchall(), "policies or rights are not those that are declared"
        transaction.set_rollback(True, "migrator")


def rows_of(store: StoreId, table: str) -> int:
    """Return how many rows of a table the migrator, whom policies bind, sees in a store."""
    connection = connections["migrator"]
    with tenant_context(store, using="migrator"), connection.cursor() as cursor:
        cursor.execute(f'SELECT count(*) FROM "{table}"')
        return int(cursor.fetchone()[0])
