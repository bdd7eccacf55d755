"""Finds what is declared of the tables of all installed models: in their ``Meta``, or by an operation."""

from __future__ import annotations

from django.apps import apps
from django.db.migrations.loader import MigrationLoader
from django.db.models import Model

from salon_jobs.migration_ops.protect_model import ProtectModel, ReleaseModel
from salon_jobs.tenancy.constraints import AccessConstraint


def declarations() -> dict[type[Model], AccessConstraint]:
    """Return the constraint that declares the access to each model's table; ``Meta`` counts more than operations.

    salon_jobs' own tables are declared in ``tenancy.job_access``. Reads the files of all migrations, not the database.
    """
    return {**declared_by_operations(), **declared_in_meta()}


def declared_in_meta() -> dict[type[Model], AccessConstraint]:
    """Return those that stand in a model's own ``Meta``."""
    return {
        model: constraint
        for model in apps.get_models(include_auto_created=True)
        for constraint in model._meta.constraints
        if isinstance(constraint, AccessConstraint) and not model._meta.proxy  # its table is another model's
    }


def declared_by_operations() -> dict[type[Model], AccessConstraint]:
    """Return those that ``ProtectModel`` gives, and no ``ReleaseModel`` took, to models that are still installed."""
    graph = MigrationLoader(None, ignore_no_migrations=True).graph
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    last = {
        operation.model.lower(): operation
        for key in plan
        for operation in graph.nodes[key].operations
        if isinstance(operation, ProtectModel)
    }
    return {
        model: operation.constraint
        for operation in last.values()
        if not isinstance(operation, ReleaseModel) and (model := _installed(operation.model)) is not None
    }


def _installed(name: str) -> type[Model] | None:
    try:
        return apps.get_model(name)
    except LookupError:
        return None
