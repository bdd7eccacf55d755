"""What is checked about foreign keys: those within one store, rows that refer to nothing, keys never validated."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from salon_jobs.access.doctor.catalogue import Catalogue, Relations
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift
from salon_jobs.access.roles import identifier


def compare_store_keys(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield same-store keys that are missing or on other columns: rows could refer to another store's rows."""
    keys = {
        (name, tuple(table)): (columns, to, to_columns, definition)
        for name, table, columns, to, to_columns, _, definition, _, _ in catalogue.rows(
            "foreign_keys", names=[key.name for key in declared.keys]
        )
    }
    for key in declared.keys:
        table, to = relations.get(key.table), relations.get(key.to_table)
        if table is None or to is None:
            continue
        *found, definition = keys.get((key.name, table[1:3]), (None, "none"))
        if found == [[*key.columns], [*to[1:3]], [*key.to_columns]]:
            continue
        own = f"FOREIGN KEY ({_listed(key.columns)}) REFERENCES {to.sql} ({_listed(key.to_columns)})"
        alter, name = f"ALTER TABLE {table.sql}", identifier(key.name)
        drop = () if definition == "none" else (f"{alter} DROP CONSTRAINT {name}",)
        add = f"{alter} ADD CONSTRAINT {name} {own} DEFERRABLE INITIALLY DEFERRED NOT VALID"
        hint = "run the doctor again after it: rows that came meanwhile are to be validated"
        yield Drift("foreign key", _where(key.name, table.identifier), own, definition, (*drop, add), hint=hint)


def find_orphans(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield keys with rows that refer to nothing, or that were never validated. Reads both tables of each key.

    Only a role that bypasses row-level security sees the rows.
    """
    for name, child, columns, parent, to_columns, is_valid, _, is_child_forced, is_parent_forced in catalogue.rows(
        "foreign_keys", names=[]
    ):
        table, to = sql.Identifier(*child), sql.Identifier(*parent)
        orphans = _orphans(table, to, columns, to_columns)
        ((count,),) = catalogue.connection.execute(
            sql.SQL("SELECT count(*) FROM ({}) AS orphans").format(orphans)
        ).fetchall()
        if count:
            hint = "this shows them; delete or fix each by hand"
            expected, found = "no rows that refer to nothing", f"{count:,} rows"
            yield Drift("orphans", _where(name, table), expected, found, (orphans.as_string(),), True, hint)
        elif not is_valid:
            # When run as the owner, the validation must not be subject to the policies.
            forced = [each for each, is_forced in ((table, is_child_forced), (to, is_parent_forced)) if is_forced]
            fix = (
                *(f"ALTER TABLE {each.as_string()} NO FORCE ROW LEVEL SECURITY" for each in forced),
                f"ALTER TABLE {table.as_string()} VALIDATE CONSTRAINT {identifier(name)}",
                *(f"ALTER TABLE {each.as_string()} FORCE ROW LEVEL SECURITY" for each in forced),
            )
            yield Drift("foreign key", _where(name, table), "validated", "NOT VALID", fix)


def _where(name: str, table: sql.Identifier) -> str:
    return f"foreign key {name} of table {table.as_string()}"


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(identifier, columns))


def _orphans(table: sql.Identifier, to: sql.Identifier, columns: list[str], to_columns: list[str]) -> sql.Composed:
    present = sql.SQL(" AND ").join(sql.SQL("c.{} IS NOT NULL").format(sql.Identifier(column)) for column in columns)
    match = sql.SQL(" AND ").join(
        sql.SQL("p.{} = c.{}").format(sql.Identifier(to_column), sql.Identifier(column))
        for to_column, column in zip(to_columns, columns, strict=True)
    )
    return sql.SQL("SELECT c.* FROM {} AS c WHERE {} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})").format(
        table, present, to, match
    )
