"""Columns for stores' keys that differ in type from the store model's primary key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from salon_jobs.access.declared_objects import identifier
from salon_jobs.access.doctor import table_parts
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.job_tables import own_tables
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key

_COLUMN: Final = "store_id"
_HINT: Final = (
    "the type of store_id follows STORE_MODEL's primary key; stop the workers and run salon_jobs doctor --fix, which"
    " rewrites the job tables, or set STORE_MODEL as it was. Keys that cannot become the other type are refused:"
    " erase their stores' rows first (salon_jobs erase-store)"
)


def compare_store_keys(catalogue: Catalogue, declared: Declaration) -> Iterator[Drift]:
    """Yield a drift if a job table was created for another type of key; it changes every dependent of the column.

    Its fix drops the dependents; the next examination finds them missing. NULL stays NULL.
    """
    key = store_key()
    tables = {table.oid: table for name, table in declared.relations.items() if name in own_tables()}
    rows = [row[:4] for row in catalogue.rows("parts", tables=[*tables], kinds=["column"]) if row[2] == _COLUMN]
    found = {oid: text.split("\n")[0].partition(" COLLATE ")[0] for oid, _, _, text in rows}
    wrong = {oid: kind for oid, kind in found.items() if kind != key.sql}
    if not wrong:
        return
    # The policies have the column, and every trigger has one of the functions.
    policies = catalogue.rows("parts", tables=[*found], kinds=["policy"])
    dependents = [*policies, *catalogue.rows("parts", tables=[*tables], kinds=["trigger"])]
    drops = [table_parts.drop(kind, name, tables[oid]) for oid, kind, name, *_ in dependents]
    makes: list[str] = []
    there = {row[1:3] for row in catalogue.rows("parts", tables=[*tables], kinds=["index", "constraint"])}
    for part in table_parts.parts_of_models(catalogue, declared):
        if (part.kind, part.name) in there and (key.none_sql in part.text or key.pattern in part.text):
            drops.append(table_parts.drop(part.kind, part.name, part.table))
            makes += part.make
    functions = {f"{function.schema}.{function.name}" for function in declared.functions}
    drops += [
        f"DROP {each.kind} {each.name}"
        for each in catalogue.objects
        if each.is_routine and each.name.partition("(")[0] in functions
    ]
    changes = [
        f"ALTER TABLE {tables[oid].sql} ALTER COLUMN {identifier(_COLUMN)} TYPE {key.sql}"
        f" USING {identifier(_COLUMN)}::text::{key.sql}"
        for oid in wrong
    ]
    of_model = (
        f"{key.sql}, as the primary key of {conf.store_model} is" if conf.store_model else "uuid, without a model"
    )
    where = f"{_COLUMN} of {', '.join(sorted(tables[oid].name for oid in wrong))}"
    kinds = ", ".join(sorted(set(wrong.values())))
    yield Drift("store keys", where, of_model, kinds, (*drops, *changes, *makes), False, _HINT)
