"""Database router of projects with several databases."""

from __future__ import annotations

from typing import Any

from django.db import OperationalError
from django.db.models import Model

from salon_jobs.conf import settings as conf
from salon_jobs.db.connections import holds_job_tables

_APP = "salon_jobs"


class JobTablesRouter:
    """Router that keeps the tables of salon_jobs in the database of ``SALON_JOBS["DATABASE"]``; for DATABASE_ROUTERS.

    Commands that go through all models of an alias, such as ``dumpdata`` and ``flush``, leave them out elsewhere. It
    makes no decision for other apps' models.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias from which a row came, or else ``DATABASE``."""
        if model._meta.app_label != _APP:
            return None
        instance: Model | None = hints.get("instance")
        return (instance._state.db if instance is not None else None) or conf.database

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Return whether an alias may hold the tables; None for other apps.

        Raises NotReady if ``DATABASE`` does not answer and may be the same database.
        """
        if app_label != _APP:
            return None
        try:
            return holds_job_tables(db)
        except OperationalError:
            # A later use of the alias meets the same error; but makemigrations asks about each alias, without a server.
            return False
