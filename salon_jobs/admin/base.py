"""Gives every admin page of salon_jobs the operator's database and no way to edit rows by form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.admin.paginator import BoundedPaginator
from salon_jobs.conf import settings as conf

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # generic for type checkers alone


def may(request: HttpRequest, permission: str) -> bool:
    """Tell whether the signed-in user has a permission."""
    user: Any = request.user
    allowed: bool = user.has_perm(permission)
    return allowed


class ReadOnlyAdmin(ModelAdmin):
    """Reads through ``OPERATOR_DATABASE`` (all stores) or the jobs' own alias; rows change by actions alone."""

    # Counting millions of rows, for a heading or for each choice of a filter, costs more than the page.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows the operator role sees."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.using(conf.reader_database)

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: jobs are enqueued by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: a form would race with the worker."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: pruning deletes."""
        return False
