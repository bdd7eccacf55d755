"""Puts a model of somebody else's app under what a constraint declares."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model

from salon_jobs.migration_ops.base import DatabaseOperation
from salon_jobs.tenancy.constraints import AccessConstraint


class ProtectModel(DatabaseOperation):
    """Give a model, whose ``Meta`` is not yours, the access that a ``StoreIsolation`` or ``SystemScope`` declares.

    ``model`` is "app_label.Model"; the table of a ManyToManyField is "app_label.Model_field". The migration depends on
    the one that creates it. What the last such operation says of a model counts.
    """

    def __init__(self, model: str, constraint: AccessConstraint) -> None:
        self.model = model
        self.constraint = constraint

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, as the operation that made its table did."""
        return self.allow_migrate_model(alias, self._model(state))

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Give the access."""
        schema_editor.add_constraint(self._model(state), self.constraint)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Take it away."""
        schema_editor.remove_constraint(self._model(state), self.constraint)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Protect {self.model} by {type(self.constraint).__name__}"

    def _model(self, state: ProjectState) -> type[Model]:
        return state.apps.get_model(self.model)
