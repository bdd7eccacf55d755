"""Compares keys of the same store, and re-checks those that PostgreSQL may have passed untruthfully.

On tables under forced row-level security its own check runs as the owner, whom the policies hold too: it does not see
the rows that violate the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import LiteralString

from psycopg import sql

from salon_jobs.doctor.catalogue import Catalogue, Relation
from salon_jobs.doctor.declaration import Declaration
from salon_jobs.doctor.drift import Drift
from salon_jobs.tenancy.roles import identifier


def _columns(numbers: LiteralString, table: LiteralString) -> LiteralString:
    """Return the expression for the names of a key's columns, in its order."""
    return (
        f"ARRAY(SELECT attname::text FROM unnest({numbers}) WITH ORDINALITY AS u (number, at)"
        f" JOIN pg_attribute ON attrelid = {table} AND attnum = u.number ORDER BY u.at)"
    )


def compare_store_keys(
    catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration
) -> Iterable[Drift]:
    """Yield keys of the same store that are missing, or on other columns: rows could refer to another store's."""
    for key in declared.keys:
        table, to = relations.get(key.table), relations.get(key.to_table)
        if table is None or to is None:
            continue
        found = catalogue.rows(
            f"""
            SELECT contype = 'f' AND confrelid = %s::bigint::oid
                   AND {_columns("conkey", "conrelid")} = %s AND {_columns("confkey", "confrelid")} = %s,
                   pg_get_constraintdef(oid)
              FROM pg_constraint WHERE conrelid = %s::bigint::oid AND conname = %s
            """,
            to.oid, list(key.columns), list(key.to_columns), table.oid, key.name,
        )  # fmt: skip
        if found and found[0][0]:
            continue
        own = f"FOREIGN KEY ({_listed(key.columns)}) REFERENCES {to.sql} ({_listed(key.to_columns)})"
        drop = [f"ALTER TABLE {table.sql} DROP CONSTRAINT {identifier(key.name)}"] if found else []
        add = f"ALTER TABLE {table.sql} ADD CONSTRAINT {identifier(key.name)} {own} DEFERRABLE INITIALLY DEFERRED"
        yield Drift(
            kind="foreign key", where=f"foreign key {key.name} of table {table.sql}", expected=own,
            seen=found[0][1] if found else "none", mend=(*drop, f"{add} NOT VALID"),
            hint="look once more after it: rows that came meanwhile are to be validated",
        )  # fmt: skip


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(identifier, columns))


def find_orphans(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield keys with rows that refer to nothing, or that were never validated. Reads both tables of each key.

    Only a role that bypasses row-level security sees the rows.
    """
    found = catalogue.rows(
        f"""
        SELECT k.conname, k.convalidated,
               ARRAY[n.nspname, c.relname]::text[], ARRAY[m.nspname, p.relname]::text[],
               {_columns("k.conkey", "k.conrelid")}, {_columns("k.confkey", "k.confrelid")},
               c.relforcerowsecurity, p.relforcerowsecurity
          FROM pg_constraint k
          JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace m ON m.oid = p.relnamespace
         WHERE k.contype = 'f' AND k.conparentid = 0 AND (c.relforcerowsecurity OR p.relforcerowsecurity)
         ORDER BY 3, 1
        """
    )
    for name, is_valid, child, parent, columns, keys, child_forced, parent_forced in found:
        orphans = _orphans(child, parent, columns, keys)
        ((count,),) = catalogue.connection.execute(
            sql.SQL("SELECT count(*) FROM ({}) AS orphans").format(orphans)
        ).fetchall()
        where = f"foreign key {name} of table {sql.Identifier(*child).as_string()}"
        if count:
            yield Drift(
                kind="orphans", where=where, expected="no rows that refer to nothing", seen=f"{count:,} rows",
                mend=(orphans.as_string(),), is_decision=True, hint="this shows them; delete or mend each by hand",
            )  # fmt: skip
        elif not is_valid:
            forced = [t for t, is_forced in ((child, child_forced), (parent, parent_forced)) if is_forced]
            # As the owner the validation must not be held to the policies.
            lift = [f"ALTER TABLE {sql.Identifier(*t).as_string()} NO FORCE ROW LEVEL SECURITY" for t in forced]
            force = [f"ALTER TABLE {sql.Identifier(*t).as_string()} FORCE ROW LEVEL SECURITY" for t in forced]
            validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(
                sql.Identifier(*child), sql.Identifier(name)
            )
            yield Drift(
                kind="foreign key", where=where, expected="validated", seen="NOT VALID",
                mend=(*lift, validate.as_string(), *force),
            )  # fmt: skip


def _orphans(child: list[str], parent: list[str], columns: list[str], keys: list[str]) -> sql.Composed:
    present = sql.SQL(" AND ").join(sql.SQL("c.{} IS NOT NULL").format(sql.Identifier(column)) for column in columns)
    match = sql.SQL(" AND ").join(
        sql.SQL("p.{} = c.{}").format(sql.Identifier(key), sql.Identifier(column))
        for key, column in zip(keys, columns, strict=True)
    )
    return sql.SQL("SELECT c.* FROM {} AS c WHERE {} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})").format(
        sql.Identifier(*child), present, sql.Identifier(*parent), match
    )
