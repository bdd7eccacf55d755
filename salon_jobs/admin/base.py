"""Gives every admin page of salon_jobs its reader's database role, and no way to edit rows by form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.paginator import BoundedPaginator
from salon_jobs.admin.reader import as_reader, reader, sees_all_stores
from salon_jobs.models import Job
from salon_jobs.tenancy.block import current_store_id

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # generic for type checkers alone


def may(request: HttpRequest, permission: str) -> bool:
    """Tell whether the signed-in user has a permission."""
    user: Any = request.user
    allowed: bool = user.has_perm(permission)
    return allowed


def may_everywhere(request: HttpRequest, permission: str) -> bool:
    """Tell whether the signed-in user has a permission and works as the operator, whose right alone will do."""
    return may(request, permission) and sees_all_stores(request)


class ReaderAdmin(ModelAdmin):
    """Reads through ``OPERATOR_DATABASE`` (all stores), or for a limited user through the web role, as one store.

    A limited user has no page of what belongs to no store, unless ``has_rows_of_stores``.
    """

    has_rows_of_stores: ClassVar[bool] = False

    class Media:
        css: ClassVar = {"all": ["salon_jobs/pages.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows the reader's role sees. Raises PermissionDenied for a role that may not even look.

        A limited user's store is named although row-level security shows no other: the planner does not see the value
        in the policy, and would read the rows of a large store as if it were one of many small ones.
        """
        if not self._is_for(request):
            raise PermissionDenied  # Django looks for the row first, and for permissions then
        rows: QuerySet[Any] = super().get_queryset(request).using(reader(request))
        limited = self.has_rows_of_stores and not sees_all_stores(request)
        return rows.filter(store_id=current_store_id()) if limited else rows

    def get_urls(self) -> list[URLPattern]:
        """Return the pages, each of which runs as its reader."""
        urls: list[URLPattern] = super().get_urls()
        for each in urls:
            each.callback = as_reader(each.callback, self.admin_site)
        return urls

    def address_of(self, model: type[models.Model], pk: object) -> str:
        """Return the address of a row's page on this site."""
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        return reverse(name, args=[pk], current_app=self.admin_site.name)

    @admin.display(description="job")
    def job_link(self, row: Any) -> SafeString | str:
        """Link to the job that a row names; it is gone when it has succeeded."""
        if row.job_id is None:
            return "-"
        return format_html('<a href="{}">{}</a>', self.address_of(Job, row.job_id), row.job_id)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may see any of these rows."""
        return self._is_for(request) and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Tell whether the user may see these rows."""
        return self._is_for(request) and super().has_view_permission(request, obj)

    def _is_for(self, request: HttpRequest) -> bool:
        return self.has_rows_of_stores or sees_all_stores(request)


class _OrderedList(ChangeList):
    def get_ordering_field(self, field_name: Any) -> Any:
        """Sort by what the heads of the columns offer: by others, the address makes it read and sort every row."""
        is_offered = self.sortable_by is None or field_name in self.sortable_by
        return super().get_ordering_field(field_name) if is_offered else None


class ReadOnlyAdmin(ReaderAdmin):
    """Shows rows that change by actions alone."""

    # Counting millions of rows, for a heading or for each choice of a filter, costs more than the page.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    # The conditions, besides those of the filters, by which other pages link to the list.
    linked_by: ClassVar[tuple[str, ...]] = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that keeps to ``sortable_by``."""
        return _OrderedList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow what the filters offer: by any other condition hidden values of a payload could be guessed.

        Nor what no text of PostgreSQL can hold.
        """
        offered = [name for each in self.list_filter for name in _lookups_of(each)]
        return lookup in (*offered, *self.linked_by) and "\0" not in value

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: jobs are enqueued by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: a form would race with the worker."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: pruning deletes."""
        return False


def _lookups_of(list_filter: Any) -> tuple[str, ...]:
    """Return the query parameters of one of our list filters: a field's name, or a ``SimpleListFilter``."""
    if isinstance(list_filter, str):
        return list_filter, f"{list_filter}__exact"
    return (list_filter.parameter_name,)
