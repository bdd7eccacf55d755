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

_TABLES: Final = """
SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity, ARRAY(
       SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                        (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum))
         FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY 1)
  FROM pg_class c WHERE c.oid = to_regclass(quote_ident(%s))
"""
_CONSTRAINTS: Final = """
SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint
 WHERE conrelid = to_regclass(quote_ident(%s)) AND contype <> 'n' ORDER BY 1
"""
_KEY: Final = """
SELECT pg_get_constraintdef(oid) LIKE %s || '%%' FROM pg_constraint
 WHERE conrelid = to_regclass(quote_ident(%s)) AND conname = %s
"""
_INDEXES: Final = """
SELECT regexp_replace(pg_get_indexdef(indexrelid), 'INDEX \\S+ ON', 'INDEX ON') FROM pg_index
 WHERE indrelid = to_regclass(quote_ident(%s)) ORDER BY 1
"""
_POLICIES: Final = """
SELECT policyname, permissive, roles::text, cmd, qual, with_check FROM pg_policies WHERE tablename = %s ORDER BY 1
"""
# The rights of an owner who was never named in a list are those of one who has them all in it.
_RIGHTS: Final = """
SELECT grantee::regrole::text, privilege_type FROM pg_class c, aclexplode(coalesce(relacl, acldefault('r', relowner)))
 WHERE c.oid = to_regclass(quote_ident(%s)) ORDER BY 1, 2
"""
_QUERIES: Final = (_TABLES, _CONSTRAINTS, _INDEXES, _POLICIES, _RIGHTS)


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


def snapshot(state: ProjectState) -> dict[str, list[Any]]:
    """Return what the catalogue has of each table, without the names that Django gives."""
    return {table: [seen(query, table) for query in _QUERIES] for table in tables_of(state)}


def assert_as_declared(state: ProjectState) -> None:
    """Compare the policies of each isolated table with those that its declaration makes now, and look at its keys."""
    connection = connections["migrator"]
    for model in state.apps.get_models(include_auto_created=True):
        table = model._meta.db_table
        assert all(valid for _, valid in seen(_CONSTRAINTS, table)), f"{table} has keys that were not checked"
        for declared in model._meta.constraints:
            if isinstance(declared, DatabaseForeignKey):
                columns, to, to_columns = declared.reference(model)
                text = f"FOREIGN KEY ({', '.join(columns)}) REFERENCES {to._meta.db_table}({', '.join(to_columns)})"
                assert seen(_KEY, text, table, declared.name) == [(True,)], f"{table} has no key {declared.name}"
            if not isinstance(declared, AccessConstraint) or table == "store":
                continue
            protected, constraint = declared.protects(model)
            access = constraint.access(protected, conf.roles, using="migrator")
            assert access is not None
            [(_, enabled, forced, _)] = seen(_TABLES, access.table)
            assert (enabled, forced) == (access.is_protected, access.force)
            found = seen(_POLICIES, access.table)
            rights = seen(_RIGHTS, access.table)
            with transaction.atomic("migrator"), connection.cursor() as cursor:
                for statement in access.install(() if conf.roles is None else conf.roles.runtime):
                    cursor.execute(statement)
                cursor.execute(_POLICIES, [access.table])
                expected = cursor.fetchall()
                cursor.execute(_RIGHTS, [access.table])
                expected_rights = cursor.fetchall()
                transaction.set_rollback(True, "migrator")
            assert found == expected, f"the policies of {access.table} are not those that are declared"
            assert rights == expected_rights


def rows_of(store: StoreId, table: str) -> int:
    """Return how many rows of a table the migrator, whom policies bind, sees in a store."""
    connection = connections["migrator"]
    with tenant_context(store, using="migrator"), connection.cursor() as cursor:
        cursor.execute(f'SELECT count(*) FROM "{table}"')
        return int(cursor.fetchone()[0])
