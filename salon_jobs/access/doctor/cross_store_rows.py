"""Rows that lead to two stores or, if a parent has their store, to none: isolation hides them from all stores."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from django.apps import apps
from django.db.models import Model

from salon_jobs.access.constraints import SameStoreForeignKey, StoreIsolation
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.store_paths import StorePaths


def find_cross_store_rows(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables with such rows, declared or not. Reads each table with two paths to a store.

    Only a role that bypasses row-level security sees all of the rows.
    """
    tables = {name: table.sql for name, table in declared.relations.items()}
    paths = StorePaths(declared.models, lambda model: tables.get(model._meta.db_table))
    for model in apps.get_models(include_auto_created=True):
        table = declared.relations.get(model._meta.db_table)
        conditions = [] if table is None or model._meta.proxy else _conditions(model, paths)
        if table is None or not conditions:
            continue
        query = f"SELECT t.* FROM {table.sql} AS t WHERE {' OR '.join(conditions)}"
        ((count,),) = catalogue.connection.execute(f"SELECT count(*) FROM ({query}) AS rows".encode()).fetchall()
        if count:
            hint = "this shows them; isolated, they are nobody's: correct or delete each by hand"
            yield Drift(
                "stores of rows", table.where, "one store for each row", f"{count:,} rows", (query,), True, hint
            )


def _conditions(model: type[Model], paths: StorePaths) -> list[str]:
    """Return the conditions that find a model's rows of two stores or of none; there should be no such rows."""
    enforced = {key.field for key in model._meta.constraints if isinstance(key, SameStoreForeignKey)}
    keys = [key for key in model._meta.local_fields if isinstance(key.related_model, type)]
    stores = {key.name: paths.by(key, "t") for key in keys if key.name not in enforced}
    isolation = paths.declared.get(model)
    nobodys = list[str]()
    if isinstance(isolation, StoreIsolation):
        if isolation.field:
            stores[isolation.field] = paths.of(model, "t")
        elif first := stores[isolation.through[0]]:
            nobodys = [f"{first} IS NULL"]
    return [*nobodys, *(f"{one} <> {other}" for one, other in combinations(filter(None, stores.values()), 2))]
