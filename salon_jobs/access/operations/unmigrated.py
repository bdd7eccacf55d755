"""Installation for job tables that Django creates without migrations, as in tests that must start sooner."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from salon_jobs.access.operations.access import InstallDeclared, InstallFanOutFunction
from salon_jobs.db.connections import holds_job_tables


def install_without_migrations(*, sender: AppConfig, using: str, **options: Any) -> None:
    """Install the objects of our migrations, if they are switched off. Receiver of ``post_migrate``.

    ``flush``, which sends the signal too, drops nothing. Idempotent.
    """
    if "plan" not in options or MigrationLoader.migrations_module(sender.label)[0] is not None:
        return
    if not holds_job_tables(using):
        return
    connection, state = connections[using], ProjectState.from_apps(apps)
    with transaction.atomic(using=using):
        # Roles may read it, as with migrations; Django creates it with the first migration.
        MigrationRecorder(connection).ensure_schema()
        for model in sender.get_models():
            for trigger in getattr(model._meta, "triggers", ()):
                trigger.install(model, database=using)
        with connection.schema_editor() as editor:
            for operation in (InstallDeclared(), InstallFanOutFunction()):
                operation.database_forwards(sender.label, editor, state, state)
