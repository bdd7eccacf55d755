"""Paths from a row to its store: by its own column, or by that of a row to which it refers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model

from salon_jobs.access.constraints import AccessConstraint, StoreIsolation, column_of
from salon_jobs.access.declared_objects import identifier
from salon_jobs.conf import settings as conf


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Expressions for the stores of rows, from the models' declarations; ``table`` returns a model's table name."""

    declared: Mapping[type[Model], AccessConstraint]
    table: Callable[[type[Model]], str | None]

    def of(self, model: type[Model], row: str) -> str | None:
        """Return the store of a row, an alias; None if none is known."""
        meta: Any = model._meta
        isolation = self.declared.get(model)
        if _is_store(model):
            return f"{row}.{identifier(meta.pk.column)}"
        if isinstance(isolation, StoreIsolation):
            if isolation.field:
                return f"{row}.{identifier(column_of(model, isolation.field))}"
            return self.by(meta.get_field(isolation.through[0]), row)
        keys = [] if isolation else [key for key in meta.local_fields if _is_store(key.related_model)]
        return f"{row}.{identifier(keys[0].column)}" if len(keys) == 1 else None

    def by(self, key: Any, row: str) -> str | None:
        """Return the store of the row to which ``row`` refers by a foreign key."""
        to: type[Model] = key.related_model._meta.concrete_model
        if _is_store(to):
            return f"{row}.{identifier(key.column)}"
        parent = f"{row}p"
        table, store = self.table(to), self.of(to, parent)
        if table is None or store is None:
            return None
        is_it = f"{parent}.{identifier(key.target_field.column)} = {row}.{identifier(key.column)}"
        return f"(SELECT {store} FROM {table} AS {parent} WHERE {is_it})"


def _is_store(model: Any) -> bool:
    return isinstance(model, type) and model._meta.label.lower() == (conf.store_model or "").lower()  # type: ignore[attr-defined]
