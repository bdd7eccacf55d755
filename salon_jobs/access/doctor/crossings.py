"""Rows that lead to two stores or, where their store is that of a parent, to none: isolation hides them from all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from django.apps import apps
from django.db.models import Model

from salon_jobs.access.constraints import SameStoreForeignKey, StoreIsolation, column_of
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.objects import identifier
from salon_jobs.conf import settings as conf


def find_crossings(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables with such rows, also those that declare nothing yet. Reads each table with two ways to a store.

    Only a role that bypasses row-level security sees all of the rows.
    """
    ways = _Ways(declared)
    for model in apps.get_models(include_auto_created=True):
        table = declared.relations.get(model._meta.db_table)
        conditions = [] if table is None or model._meta.proxy else ways.conditions(model)
        if table is None or not conditions:
            continue
        query = f"SELECT t.* FROM {table.sql} AS t WHERE {' OR '.join(conditions)}"
        ((count,),) = catalogue.connection.execute(f"SELECT count(*) FROM ({query}) AS rows".encode()).fetchall()
        if count:
            hint = "this shows them; isolated, they are nobody's: correct or delete each by hand"
            yield Drift(
                "stores of rows", table.where, "one store for each row", f"{count:,} rows", (query,), True, hint
            )


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways from a row to its store, each as an expression: a column of its own, or one of a parent."""

    declared: Declaration

    def conditions(self, model: type[Model]) -> list[str]:
        """Return the conditions that find a model's rows of two stores or of none, of which there should be none."""
        enforced = {key.field for key in model._meta.constraints if isinstance(key, SameStoreForeignKey)}
        keys = [key for key in model._meta.local_fields if isinstance(key.related_model, type)]
        stores = {key.name: self._by(key, "t") for key in keys if key.name not in enforced}
        isolation = self.declared.models.get(model)
        nobodys = list[str]()
        if isinstance(isolation, StoreIsolation):
            if isolation.field:
                stores[isolation.field] = self._of(model, "t")
            elif first := stores[isolation.through[0]]:
                nobodys = [f"{first} IS NULL"]
        return [*nobodys, *(f"{one} <> {other}" for one, other in combinations(filter(None, stores.values()), 2))]

    def _of(self, model: type[Model], row: str) -> str | None:
        """Return the store of a row; None if none is known."""
        meta: Any = model._meta
        isolation = self.declared.models.get(model)
        if _is_store(model):
            return f"{row}.{identifier(meta.pk.column)}"
        if isinstance(isolation, StoreIsolation):
            if isolation.field:
                return f"{row}.{identifier(column_of(model, isolation.field))}"
            return self._by(meta.get_field(isolation.through[0]), row)
        keys = [] if isolation else [key for key in meta.local_fields if _is_store(key.related_model)]
        return f"{row}.{identifier(keys[0].column)}" if len(keys) == 1 else None

    def _by(self, key: Any, row: str) -> str | None:
        """Return the store of the row to which ``row`` refers by a foreign key."""
        to: type[Model] = key.related_model._meta.concrete_model
        if _is_store(to):
            return f"{row}.{identifier(key.column)}"
        parent = f"{row}p"
        table, store = self.declared.relations.get(to._meta.db_table), self._of(to, parent)
        if table is None or store is None:
            return None
        is_it = f"{parent}.{identifier(key.target_field.column)} = {row}.{identifier(key.column)}"
        return f"(SELECT {store} FROM {table.sql} AS {parent} WHERE {is_it})"


def _is_store(model: Any) -> bool:
    return isinstance(model, type) and model._meta.label.lower() == (conf.store_model or "").lower()  # type: ignore[attr-defined]
