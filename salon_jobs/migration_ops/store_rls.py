"""Holds row-level security by store for one model of the business."""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops.base import DatabaseOperation, execute
from salon_jobs.tenancy.access import TableAccess
from salon_jobs.tenancy.policy import store_access


class EnableStoreRLS(DatabaseOperation):
    """Show and accept a model's rows for the current store only, FORCEd, for the web and worker roles.

    ``store_field`` is the model's field holding the store: ``store`` or ``store_id``, and ``id`` for the store model.
    With one database user the policy is TO PUBLIC, and the store model itself is left open to its owner (no FORCE),
    since the fan-out function belongs to that user and must list the stores.
    """

    locks_tables = True

    def __init__(self, model_name: str, store_field: str = "store_id") -> None:
        self.model_name = model_name
        self.store_field = store_field

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, as the operation that made its table did."""
        return self.allow_migrate_model(alias, state.apps.get_model(app_label, self.model_name))

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create the policy, then switch RLS on."""
        access = self._access(app_label, state.apps)
        execute(schema_editor, *access.protect())

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Switch RLS off and drop the policy."""
        execute(schema_editor, *self._access(app_label, state.apps).unprotect())

    def describe(self) -> str:
        """Describe the operation."""
        return f"Enable row-level security by store on {self.model_name}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return how to write the operation."""
        return (type(self).__name__, [self.model_name], {"store_field": self.store_field})

    def _access(self, app_label: str, apps: Apps) -> TableAccess:
        meta = apps.get_model(app_label, self.model_name)._meta
        field = next(field for field in meta.local_fields if self.store_field in (field.name, field.attname))
        is_store = (conf.store_model or "").lower() == f"{app_label}.{self.model_name}".lower()
        return store_access(meta.db_table, str(field.column), force=conf.roles is not None or not is_store)
