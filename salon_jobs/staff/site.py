"""Admin site with pages of isolated models that run in the store that the user has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, cast

from django.contrib import admin, messages
from django.contrib.admin import options
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.contenttypes.views import shortcut
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, router, transaction
from django.db.models import Model, QuerySet
from django.db.models.base import ModelBase
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from salon_jobs.access.constraints import AccessConstraint, SystemScope
from salon_jobs.conf.store_key import store_key, store_model
from salon_jobs.core.records import StoreId
from salon_jobs.db.connections import alias_of
from salon_jobs.staff.choice import choose, chosen_store, exists, find_stores, last_used, may_choose, parsed
from salon_jobs.tenancy.active import current_store_id, expect_no_rows
from salon_jobs.tenancy.context import tenant_context
from salon_jobs.tenancy.names import store_name, store_words
from salon_jobs.tenancy.request import stream_as
from salon_jobs.tenancy.stores import new_key
from salon_jobs.tenancy.violations import violation_of

if TYPE_CHECKING:
    BaseModelAdmin = options.BaseModelAdmin[Any]
    ModelAdmin = admin.ModelAdmin[Any]
else:
    BaseModelAdmin, ModelAdmin = options.BaseModelAdmin, admin.ModelAdmin  # generic only for type checkers

View = Callable[..., HttpResponseBase]
# Field of each form with the store of its page.
_PAGE_STORE: Final = "salon_jobs_page_store"
_TOKEN: Final = b'<input type="hidden" name="csrfmiddlewaretoken"'


def is_isolated(model: type[Model]) -> bool:
    """Return whether the ``Meta`` of a model, or of one that it extends, isolates it by store."""
    concrete: Any = model._meta.concrete_model
    return any(
        isinstance(constraint, AccessConstraint) and not isinstance(constraint, SystemScope)
        for each in (concrete, *concrete._meta.get_parent_list())
        for constraint in each._meta.constraints
    )


class StoreAdminSiteMixin(admin.AdminSite):
    """Admin site with a switcher in its header; registered classes of isolated models get ``StoreAdminMixin``."""

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Register models, each with its class or, if isolated, with a class that also has ``StoreAdminMixin``."""
        models: Iterable[Any] = [model_or_iterable] if isinstance(model_or_iterable, ModelBase) else model_or_iterable
        for model in models:
            given: Any = admin_class or admin.ModelAdmin
            if is_isolated(model) and not issubclass(given, StoreAdminMixin):
                given = type(given.__name__, (StoreAdminMixin, given), {"__module__": given.__module__})
            super().register(model, given, **options)

    def get_urls(self) -> list[Any]:
        choice: Any = self.admin_view(self.choose_store)
        row: Any = self.admin_view(self.view_on_site)
        return [
            path("choose-store/", choice, name="salon_jobs_choose_store"),
            path("r/<path:content_type_id>/<path:object_id>/", row, name="view_on_site"),  # before Django's own
            *super().get_urls(),
        ]

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Wrap the view; explain when hidden rows of other stores block a deletion."""

        @wraps(view)
        def run(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            name = getattr(view, "__name__", "")
            acts = name == "changelist_view" and request.POST.get("action") == "delete_selected"
            if not (acts or name == "delete_view") or store_model() is None or current_store_id() is not None:
                return view(request, *args, **kwargs)
            try:
                with expect_no_rows(), transaction.atomic(using=alias_of(None)):
                    return view(request, *args, **kwargs)
            except DatabaseError as error:
                if (violation := violation_of(error)) is None:
                    raise
                list(messages.get_messages(request))  # discards the message that it was deleted
                messages.error(request, " ".join(violation.messages))
                return HttpResponseRedirect(request.get_full_path())

        return super().admin_view(run, cacheable)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of each page, with the chosen store for the switcher in the header."""
        context = super().each_context(request)
        if store_model() is not None and self.has_permission(request):
            store = chosen_store(request)
            found = request.resolver_match
            is_list = found is not None and (found.url_name or "").endswith("_changelist")
            context["store_switcher"] = {
                "name": None if store is None else store_name(store),
                "url": reverse("admin:salon_jobs_choose_store", current_app=self.name),
                # A row's page has nothing to show in another store.
                "next": request.path if is_list else reverse("admin:index", current_app=self.name),
                "words": store_words(),
            }
        return context

    def choose_store(self, request: HttpRequest) -> HttpResponseBase:
        """Show the stores in which the user may work, or save the choice and return to the page."""
        after = request.POST.get("next") or request.GET.get("next") or ""
        if not url_has_allowed_host_and_scheme(after, {request.get_host()}, request.is_secure()):
            after = reverse("admin:index", current_app=self.name)
        if request.method == "POST":
            given = request.POST.get("store", "")
            store = parsed(given)
            if given and (store is None or not may_choose(request, store) or not exists(store)):
                raise PermissionDenied(gettext("you do not belong to this %(store)s") % store_words())
            choose(request, store)
            return HttpResponseRedirect(after)
        title, text = gettext("Choose the %(store)s to work in") % store_words(), request.GET.get("q", "").strip()
        return self.offer(request, title, after, text)

    def offer(self, request: HttpRequest, title: str, after: str, text: str = "", **context: Any) -> TemplateResponse:
        """Return the page with the stores found by ``text``, with buttons that lead to ``after``."""
        context |= {"title": title, "text": text, "after": after, "chosen": str(chosen_store(request) or "")}
        context["last_used"] = [(str(store), name) for store, name in last_used(request).items()]
        context["found"] = [(str(store), name) for store, name in find_stores(request, text).items()]
        status = context.pop("status", 200)
        request.current_app = self.name
        context = {**self.each_context(request), **context}
        return TemplateResponse(request, "admin/salon_jobs/choose_staff_store.html", context, status=status)

    def autocomplete_view(self, request: HttpRequest) -> HttpResponse:
        """Search in the chosen store."""
        with self._in_chosen_store(request):
            return super().autocomplete_view(request)

    def view_on_site(self, request: HttpRequest, content_type_id: str, object_id: str) -> HttpResponseBase:
        """Lead from a row's page in the admin to its own, in the chosen store."""
        with self._in_chosen_store(request):
            return shortcut(request, content_type_id, object_id)

    def _in_chosen_store(self, request: HttpRequest) -> AbstractContextManager[object]:
        store = chosen_store(request) if store_model() is not None and self.has_permission(request) else None
        return expect_no_rows() if store is None else tenant_context(store, switch=True)


class StoreAdminSite(StoreAdminSiteMixin):
    """Admin site for staff who work in one store at a time."""


class _OffersStore(BaseModelAdmin):
    """ModelAdmin or inline with forms that know the current store."""

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only the current store, and fill it in."""
        store, model = current_store_id(), db_field.remote_field.model
        if store is not None and model is store_model():
            kwargs = {
                "queryset": db_field.remote_field.model._default_manager.filter(pk=store),
                "initial": store,
                **kwargs,
            }
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


class StoreAdminMixin(_OffersStore, ModelAdmin):
    """ModelAdmin with pages in the store that the user has chosen; without a choice they ask for one.

    ``StoreAdminSiteMixin`` adds it to models isolated by their ``Meta``. Name it for others that show such rows.
    """

    @property
    def _is_of_stores(self) -> bool:
        return self.model._meta.concrete_model is store_model()

    def get_urls(self) -> list[Any]:
        """Return the URLs. Raises ImproperlyConfigured on an admin site without a switcher."""
        if not isinstance(self.admin_site, StoreAdminSiteMixin):
            raise ImproperlyConfigured(
                f"{type(self).__name__} has StoreAdminMixin, so its site needs StoreAdminSiteMixin: in INSTALLED_APPS "
                "put 'salon_jobs.staff.apps.StoreAdminConfig' in place of 'django.contrib.admin'"
            )
        urls: list[Any] = super().get_urls()
        for each in urls:
            if isinstance(each, URLPattern):
                each.callback = self._in_store(each.callback, adds=(each.name or "").endswith("_add"))
        return urls

    def _in_store(self, view: View, *, adds: bool) -> View:
        @wraps(view)
        def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if store_model() is None or not self.admin_site.has_permission(request):
                return view(request, *args, **kwargs)
            if self._is_of_stores and (adds or "_saveasnew" in request.POST):
                store = request.__dict__["_salon_jobs_new_store"] = self._key_to_add(request)
                if store is None:
                    with expect_no_rows():
                        return _rendered(view(request, *args, **kwargs))
            else:
                store = chosen_store(request)
                page_store = request.POST.get(_PAGE_STORE)
                if store is None or page_store not in (None, str(store)):
                    return self._refuse(request, store)
            make = partial(tenant_context, store, switch=True)
            with make():
                response = _rendered(view(request, *args, **kwargs), store)
                stream_as(make(), response)
            is_changed = self._is_of_stores and request.method == "POST"
            if is_changed and store == chosen_store(request) and not exists(store):  # it no longer does
                choose(request, None)
            return response

        return run

    def _refuse(self, request: HttpRequest, store: StoreId | None) -> HttpResponseBase:
        """Refuse the request: no store is chosen, or another one than when the page was made."""
        rows, words, site = (
            str(self.opts.verbose_name_plural),
            store_words(),
            cast("StoreAdminSiteMixin", self.admin_site),
        )
        title = gettext("No %(store)s is chosen") % words
        if store is not None:
            title = gettext("Nothing was changed")
            text = gettext("Nothing was changed: this page was made before you switched to “%(name)s”.")
            text %= {"name": store_name(store)}
        elif self._is_of_stores:
            text = gettext("You see one %(store)s at a time, and none is chosen.") % words
        else:
            text = gettext("%(rows)s belong to one %(store)s at a time, and none is chosen.")
            text %= {**words, "rows": rows[:1].upper() + rows[1:]}
        name, sends = f"admin:{self.opts.app_label}_{self.opts.model_name}_", request.method == "POST"
        after = reverse(f"{name}changelist", current_app=site.name) if sends else request.get_full_path()
        more: dict[str, Any] = {"reason": text, "status": 409 if sends else 200, "opts": self.opts}
        if self._is_of_stores and self.has_add_permission(request):
            more["add"] = reverse(f"{name}add", current_app=site.name)
        return site.offer(request, title, after, **more)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows; for the store model only the current one, since with one database user it owns the table."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(pk=current_store_id()) if self._is_of_stores else rows

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Return the filters without those by store: a page shows one, and one database user would see them all."""
        return [each for each in super().get_list_filter(request) if not self._leads_to_stores(each)]

    def _leads_to_stores(self, list_filter: Any) -> bool:
        path: Any = cast("Any", list_filter)[0] if isinstance(list_filter, (list, tuple)) else list_filter
        fields: list[Any] = get_fields_from_path(self.model, path) if isinstance(path, str) else []
        return any(each.is_relation and each.related_model is store_model() for each in fields)

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        """Return the inlines, whose forms offer only the current store, like this one's."""
        return [
            type(each.__name__, (_OffersStore, each), {"__module__": each.__module__})
            for each in super().get_inlines(request, obj)
        ]

    def _key_to_add(self, request: HttpRequest) -> StoreId | None:
        """Return the key of the store that the form adds, for its context; None while it is shown, or has none."""
        if request.method != "POST":
            return None
        if not self.has_add_permission(request):
            raise PermissionDenied  # before the answer shows whether a key is taken
        field: Any = self.model._meta.pk
        if field.name in request.POST and field.formfield() is not None:
            store = parsed(request.POST[field.name])
            if store is not None and exists(store) and not may_choose(request, store):
                raise PermissionDenied("this key is taken")
            return store
        key = new_key(self.model(), using=router.db_for_write(self.model))
        return None if key in (None, "") else store_key().parse(key)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        """Give a new store the key of the open context."""
        row = super().save_form(request, form, change)
        if "_salon_jobs_new_store" in request.__dict__:
            row.pk = request.__dict__["_salon_jobs_new_store"]
            if row.pk is None:
                raise BadRequest(f"the key of a store must be {store_key().description}")
        return row

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> Any:
        """Choose the new store, which its page shows next, unless another page waits for it."""
        if self._is_of_stores and "_popup" not in request.POST and may_choose(request, obj.pk):
            choose(request, obj.pk)
        return super().response_add(request, obj, post_url_continue)


def _rendered(response: HttpResponseBase, store: StoreId | None = None) -> HttpResponseBase:
    """Render the response in the store, and add the store to its forms."""
    if isinstance(response, SimpleTemplateResponse):
        response.render()
    content = b"" if response.streaming else getattr(response, "content", b"")
    if store is not None and _TOKEN in content and response.get("Content-Type", "").startswith("text/html"):
        field = format_html('<input type="hidden" name="{}" value="{}">', _PAGE_STORE, str(store)).encode()
        response.content = content.replace(_TOKEN, field + _TOKEN)  # type: ignore[attr-defined]
    return response
