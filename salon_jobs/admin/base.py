"""Base of all admin pages: bounded lists, permissions, refusals in words, and links between rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core import paginator
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import ProgrammingError, models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import get_language, get_language_bidi, gettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.cells import ALL, SHOW
from salon_jobs.admin.reader import View, own_store, refusal, sees_all_stores
from salon_jobs.admin.reader import as_reader as as_reader  # noqa: PLC0414 - documented here
from salon_jobs.admin.reader import reader as reader  # noqa: PLC0414
from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import storable
from salon_jobs.core.text import short_repr, visible_html
from salon_jobs.db.connections import schema_missing
from salon_jobs.models import Job, Process
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.names import store_name


def explained(view: View, model_admin: ReaderAdmin) -> View:
    """Return a view that explains a refusal, an unknown filter, or the command to run if tables are missing.

    In its pages, invisible characters are escaped.
    """
    site = model_admin.admin_site

    @wraps(view)
    def explain(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if "object_id" in kwargs:
            kwargs["object_id"] = storable(kwargs["object_id"])
        try:
            response = view(request, *args, **kwargs)
        except PermissionDenied as refused:
            if not site.has_permission(request):
                raise
            reason = str(refused) or model_admin.reason_to_refuse(request)
            context = {**site.each_context(request), "title": gettext("403 Forbidden"), "reason": reason}
            response = TemplateResponse(request, "admin/salon_jobs/refused.html", context, status=403)
        except DisallowedModelAdminLookup as error:
            where = {"list": address_of_list(model_admin.model, site), "listed": model_admin.opts.verbose_name_plural}
            context = {**site.each_context(request), "title": gettext("400 Bad Request"), "reason": str(error), **where}
            response = TemplateResponse(request, "admin/salon_jobs/refused.html", context, status=400)
        except ProgrammingError as error:
            missing = schema_missing(error)
            if missing is None or "salon_jobs_" not in str(error):
                raise
            # The request's transaction may be broken, so no query from here on, and no list of apps.
            context = {"title": gettext("503 Service Unavailable"), "reason": f"{missing.code}: {missing}"}
            response = TemplateResponse(request, "admin/salon_jobs/refused.html", context, status=503)
        if isinstance(response, SimpleTemplateResponse):
            response.add_post_render_callback(_show_unseen)
        return response

    return explain


# Django's own words in Khmer, and in languages from right to left, are written with these.
_MARKS: Final = "\u200b\u200e\u200f"


def _show_unseen(response: SimpleTemplateResponse) -> None:
    """Escape the characters of a page that control terminals or change the direction of text."""
    is_written_with_marks = get_language_bidi() or (get_language() or "").startswith("km")
    page = visible_html(response.content.decode(response.charset), _MARKS if is_written_with_marks else "")
    response.content = page.encode(response.charset)


if TYPE_CHECKING:
    Paginator = paginator.Paginator[Any]
else:
    Paginator = paginator.Paginator  # generic only for type checkers

# Class of the sections that stand beside the others on a row's page, where it is wide enough.
ASIDE: Final = "salon-jobs-aside"

# The most rows to count for a list or a state.
MOST: Final = 10_000


class AtLeast(int):
    """Count that stopped at a bound; shown with a plus."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(Paginator):
    """Paginator over the first 10,000 rows: counting or skipping millions takes longer than the page."""

    @cached_property
    def count(self) -> int:
        """Number of rows, up to 10,000. One more is read to know whether there are more."""
        rows: Any = self.object_list
        count: int = rows.order_by()[: MOST + 1].count()
        return count if count <= MOST else AtLeast(MOST)


if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # generic only for type checkers


def configured_parts() -> dict[str, bool]:
    """Return which parts of the product this project's settings configure."""
    return {
        "jobs": True,
        "tenants": conf.store_model is not None,
        "outbox": conf.outbox.producer is not None,
        "inbox": bool(conf.consumers),
    }


class ReaderAdmin(ModelAdmin):
    """Admin that reads all stores through ``OPERATOR_DATABASE``, or a limited user's store through the web role.

    A limited user has no page for rows without a store, unless ``has_rows_of_stores``.
    """

    has_rows_of_stores: ClassVar[bool] = False
    # The index lists a page only if the settings configure this part.
    part: ClassVar[Literal["jobs", "tenants", "outbox", "inbox"]] = "jobs"
    # Internal pages are linked from others; the index leaves them out.
    is_internal: ClassVar[bool] = False
    # Internal pages that the list links to.
    related: ClassVar[tuple[type[models.Model], ...]] = ()
    # Large columns that only a row's page reads.
    deferred: ClassVar[tuple[str, ...]] = ()
    # The text of an empty list about the source of rows.
    empty_hint: ClassVar[Any] = ""
    # Help texts for fields of a row's page.
    help_texts: ClassVar[Mapping[str, Any]] = {}
    list_class: ClassVar[type[ChangeList]] = ChangeList
    # Lookups with which other pages link to the list, in addition to those of the filters.
    linked_by: ClassVar[tuple[str, ...]] = ()
    # The permissions for Django's own forms, if the page has them.
    edited_by: ClassVar[tuple[str, ...]] = ("add", "change", "delete")

    class Media:
        css: ClassVar = {"all": ["salon_jobs/pages.css"]}
        js: ClassVar = ["salon_jobs/pages.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows that the reader's role sees. Raises PermissionDenied for a role that may see none.

        Filters by a limited user's store although row-level security shows no other: the planner does not know the
        value in the policy, and would read a large store's rows as if the store were one of many small ones.
        """
        if not self._is_for(request):
            raise PermissionDenied  # Django fetches the row before it checks permissions
        rows: QuerySet[Any] = super().get_queryset(request).using(reader(request)).defer(*self.deferred)
        limited = self.has_rows_of_stores and not sees_all_stores(request)
        return rows.filter(store_id=current_store_id()) if limited else rows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters' lookups: with any other, hidden values of a payload could be guessed.

        Also refuses values that PostgreSQL's text cannot hold.
        """
        offered = set(self.linked_by)
        for each in self.list_filter:  # a field's name, perhaps with its filter, or a ``SimpleListFilter``
            field: Any = each[0] if isinstance(each, list | tuple) else each
            offered |= {field, f"{field}__exact"} if isinstance(field, str) else {field.parameter_name}
        if lookup not in offered:
            said = gettext("%(rows)s have no filter %(lookup)s")
            raise DisallowedModelAdminLookup(said % {"rows": self.opts.verbose_name_plural, "lookup": repr(lookup)})
        return "\0" not in value

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Take the chosen action on the selected rows. A selection that no row's key can be gets a message instead."""
        for selected in request.POST.getlist(ACTION_CHECKBOX_NAME):
            if not _can_be_key(self.opts.pk, selected):
                said = gettext("Nothing was done: %(value)s is not the key of %(row)s.")
                row = {"value": short_repr(selected), "row": self.opts.verbose_name}
                messages.warning(request, said % row)
                return None
        return super().response_action(request, queryset, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list, with the model's name as its title."""
        title = str(self.opts.verbose_name_plural).capitalize()
        related: list[tuple[str, str]] = []
        for model in self.related:
            page: Any = self.admin_site.get_model_admin(model) if self.admin_site.is_registered(model) else None
            if page is not None and configured_parts()[page.part] and page.has_view_permission(request):
                name = str(model._meta.verbose_name_plural).capitalize()
                related.append((name, address_of_list(model, self.admin_site)))
        return super().changelist_view(request, {"title": title, "related": related, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a row, with the model's name as its title."""
        title = str(self.opts.verbose_name).capitalize()
        return super().change_view(request, object_id, form_url, {"title": title, **(extra_context or {})})

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form, or that of a page without one, with ``help_texts``."""
        return super().get_form(request, obj, change, help_texts=self.help_texts, **kwargs)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> Any:
        """Show that the row does not exist, instead of redirecting to the index as Django does."""
        name = {"row": f"{capfirst(self.opts.verbose_name)} {unquote(object_id)}"}
        text = gettext("%(row)s does not exist, or has been deleted.")
        if store := own_store(request):
            name["store"] = store
            text = gettext("%(row)s does not exist, or has been deleted, or is not one of %(store)s.")
        return self.gone(request, gettext("%(row)s does not exist") % name, text % name)

    def gone(self, request: HttpRequest, title: str, text: str, **more: Any) -> TemplateResponse:
        """Return the page, with status 404, in place of a row's."""
        return self.page(request, "gone", title, status=404, text=text, **more)

    def page(
        self, request: HttpRequest, name: str, title: str, /, *, status: int | None = None, **context: Any
    ) -> TemplateResponse:
        """Return a page of our own, by the name of its template."""
        shared = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/salon_jobs/{name}.html", {**shared, **context}, status=status)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return self.list_class

    def get_urls(self) -> list[URLPattern]:
        urls: list[URLPattern] = super().get_urls()
        for each in urls:
            each.callback = explained(as_reader(each.callback, self.admin_site), self)
        return urls

    def address_of(self, model: type[models.Model], pk: int | str) -> str:
        """Return the URL of a row's page on this site."""
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        return reverse(name, args=[quote(pk)], current_app=self.admin_site.name)

    def link(self, model: type[models.Model], pk: int | str, shown: object) -> SafeString:
        """Link to a row's page on this site."""
        return format_html('<a href="{}">{}</a>', self.address_of(model, pk), shown)

    def link_to_list(self, model: type[models.Model], shown: object, **filters: Any) -> SafeString:
        """Link to the rows of a list on this site that match."""
        return format_html('<a href="{}">{}</a>', self.address_of_matching(model, **filters), shown)

    def address_of_matching(self, model: type[models.Model], **filters: Any) -> str:
        """Return the URL of the rows of a list on this site that match."""
        return f"{address_of_list(model, self.admin_site)}?{urlencode(filters)}"

    def link_to_process(self, pk: int | None, *, using: str | None) -> SafeString | str:
        """Link to a process, if it still exists."""
        if pk is None:
            return "-"
        found = Process.objects.using(using).filter(pk=pk).first()
        return gone(pk) if found is None else self.link(Process, pk, found)

    def link_to_store(self, store: Any, shown: str = "") -> SafeString:
        """Link to a store's page on this site, by its name unless something else is shown, with its ID as a tooltip."""
        page = reverse("admin:salon_jobs_job_overview", current_app=self.admin_site.name)
        address = f"{page}?{urlencode({'store': store})}"
        return format_html('<a href="{}" title="{}">{}</a>', address, store, shown or store_name(store))

    @admin.display(description=_("job"))
    def job_link(self, row: Any) -> SafeString | str:
        """Link to the job of a row; succeeded jobs are gone."""
        return "-" if row.job_id is None else self.link(Job, row.job_id, row.job_id)

    @admin.display(description=_("store"))
    def store(self, row: Any) -> SafeString | str:
        """Show a row's store by name, with its ID as a tooltip."""
        return "-" if row.store_id is None else self.link_to_store(row.store_id)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave out the store in a project without stores, and for staff of a single one."""
        has_stores = conf.store_model is not None and sees_all_stores(request)
        return [each for each in super().get_list_display(request) if each != "store" or has_stores]

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Leave out the store in a project without stores."""
        offered = super().get_list_filter(request)
        return [each for each in offered if conf.store_model or getattr(each, "parameter_name", "") != "store"]

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the index lists the page: not if it is internal, or the settings do not configure its part."""
        is_listed = configured_parts()[self.part] and not self.is_internal
        return is_listed and self._is_for(request) and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return self._is_for(request) and super().has_view_permission(request, obj)

    def reason_to_refuse(self, request: HttpRequest) -> str:
        """Return why the user may not open a page or send its form, naming the permissions that the user lacks."""
        page = str(request.resolver_match and request.resolver_match.url_name).rpartition("_")[2]
        verb = "change" if page == "change" and request.method == "POST" else page
        needed = f"{self.opts.app_label}.{verb if verb in self.edited_by else 'view'}_{self.opts.model_name}"
        refused = refusal(request, needed, of_all_stores=not self.has_rows_of_stores)
        return refused or gettext("no permission allows this here")

    def _is_for(self, request: HttpRequest) -> bool:
        return self.has_rows_of_stores or sees_all_stores(request)


def _can_be_key(field: Any, text: str) -> bool:
    """Return whether a database field can hold a browser's value for it."""
    with suppress(ValidationError, ValueError):
        field.clean(text, None)
        return storable(text) == text
    return False


def gone(process: int) -> str:
    """Name a process that no longer exists."""
    return gettext("process %(id)s, which is gone") % {"id": process}


def address_of_list(model: type[models.Model], site: AdminSite) -> str:
    """Return the URL of a model's list on a site."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist", current_app=site.name)


class OrderedList(ChangeList):
    """List that is sorted only by the columns that its admin offers."""

    def get_results(self, request: HttpRequest) -> None:
        """Load the rows; offer no actions without rows, and no link to all rows if all are shown."""
        super().get_results(request)
        model_admin: Any = self.model_admin
        self.result_list = model_admin.described(list(self.result_list), request)
        self.show_admin_actions = bool(self.result_count)
        if not self.query and not self.get_filters_params():
            self.full_result_count = self.result_count

    def get_ordering_field(self, field_name: Any) -> Any:
        """Sort by sortable columns only: by any other, a URL could make the list read and sort every row."""
        is_offered = self.sortable_by is None or field_name in self.sortable_by
        return super().get_ordering_field(field_name) if is_offered else None


class ReadOnlyAdmin(ReaderAdmin):
    """Admin of rows that only actions change."""

    change_form_template = "admin/salon_jobs/row.html"
    aside: ClassVar[str] = ASIDE
    edited_by = ()
    # Counting millions of rows, for a heading or for each choice of a filter, takes longer than the page.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    list_class = OrderedList
    list_per_page = 50
    ordering = ("-id",)
    # Sorting by any other column would read every row.
    sortable_by: ClassVar[list[str] | tuple[str, ...] | None] = ("id",)
    # Whether the admin's log can have entries of a row, from its actions.
    has_history: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the values on a page be computed once per row, although the page first asks whether each is empty."""
        super().__init_subclass__(**kwargs)
        for name, shown in list(vars(cls).items()):
            if hasattr(shown, "short_description"):
                setattr(cls, name, _once(name, shown))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out empty fields, fields hidden from the user, and sections without fields."""
        hidden = self.hidden_fields(request)

        def is_seen(field: Any) -> bool:
            if obj is None or field in hidden:
                return field not in hidden
            shown = getattr(self, field, None)
            value = shown(obj) if callable(shown) else getattr(obj, field)
            return value not in (None, "", "-")

        kept = [
            (name, {**each, "fields": [field for field in each["fields"] if is_seen(field)]})
            for name, each in super().get_fieldsets(request, obj)
        ]
        return [(name, each) for name, each in kept if each["fields"]]

    def hidden_fields(self, request: HttpRequest) -> set[str]:
        """Return the fields that the user may not see, and those of the store in a project without stores."""
        return set() if conf.store_model else {"store", "store_link"}

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Add the displayed facts to the rows of a list, or to the row of a page, in few queries."""
        return rows

    def of_page(self, row: Any, request: HttpRequest) -> Any:
        """Add the facts on its page to a row."""
        return self.described([row], request)[0]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with the facts on its page."""
        row: Any = super().get_object(request, object_id, from_field)
        if row is None:
            return None
        row.shows_all = request.GET.get(SHOW) == ALL
        return self.of_page(row, request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list, also for an address typed without ``__exact`` (``?state=failed``)."""
        typed = {name: f"{name}__exact" for name in request.GET if f"{name}__exact" in self.linked_by}
        if typed and request.method == "GET":
            query = request.GET.copy()
            for name, lookup in typed.items():
                query.setlist(lookup, query.pop(name))
            return HttpResponseRedirect(f"?{query.urlencode()}")
        return super().changelist_view(request, extra_context)

    def matches(self, request: HttpRequest, term: str) -> Q | None:
        """Return which rows match a search term, each by an index; None: those that match ``search_fields``."""
        return None

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[Any, bool]:
        """Search by ``matches``, if the admin has its own."""
        term = search_term.strip()
        matches = self.matches(request, term) if term else None
        if matches is None:
            return super().get_search_results(request, queryset, term)
        return queryset.filter(matches), False

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: jobs are enqueued by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: a form would race with the worker."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse: pruning deletes."""
        return False


def _once(name: str, shown: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a display function that caches its result in the row."""

    @wraps(shown)
    def remembered(model_admin: Any, row: Any) -> Any:
        known: dict[str, Any] = row.__dict__.setdefault("_shown", {})
        if name not in known:
            known[name] = shown(model_admin, row)
        return known[name]

    return remembered


def id_or_other(term: str, field: str, parse: Callable[[str], object] = UUID) -> Q:
    """Match a search term as an ID, as the result of ``parse`` (unless it raises ValueError), or as nothing."""
    matches = Q(pk__in=())
    if len(term) < 20 and term.isdecimal() and int(term) < 2**63:
        matches |= Q(pk=int(term))
    with suppress(ValueError):
        matches |= Q(**{field: parse(term)})
    return matches
