"""Base of all our tables, with the alias for reading their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.db import models, router

from salon_jobs.core.rights import Access

M = TypeVar("M", bound=models.Model)


class Rows(models.QuerySet[M]):
    """Rows that are read where they are written, unless ``using`` says otherwise.

    On a replica chosen by a router, a row added a moment ago would be missing, and states would be old.
    """

    # Fields of Django's own property that stubs leave out.
    _db: str | None
    _for_write: bool
    _hints: dict[str, Any]

    @property
    def db(self) -> str:
        """The alias to query: the one given, the one a row came from, or the one for writes."""
        source: Any = None if self._for_write else self._hints.get("instance")
        came_from = source._state.db if isinstance(source, self.model) else None
        return self._db or came_from or router.db_for_write(self.model, **self._hints)


class RowManager(models.Manager[M]):
    """Manager of ``Rows``."""

    _hints: dict[str, Any]

    @property
    def db(self) -> str:
        """The alias from which its rows are read."""
        return self.get_queryset().db

    def get_queryset(self) -> Rows[M]:
        return Rows(model=self.model, using=self._db, hints=self._hints)


class Row(models.Model):  # noqa: DJ008 - its models do
    """Row of a table of salon_jobs, with the rights on the table and its storage."""

    # Not an option of Meta: Django refuses those it does not know.
    access: ClassVar = Access()

    if not TYPE_CHECKING:  # the models' own Meta does not inherit from this one
        objects = RowManager()

        class Meta:
            """Options that a model's own Meta adds to."""

            abstract = True
            base_manager_name = "objects"  # for deferred columns and refresh_from_db
