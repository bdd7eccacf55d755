"""Admin pages where operators pause and limit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.views.main import ChangeList
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext_lazy as _

from salon_jobs.access.store_names import stores_called
from salon_jobs.admin.actions import OffersActions, actions_of, user_name
from salon_jobs.admin.base import ReaderAdmin
from salon_jobs.admin.cells import badge, below, scope_name
from salon_jobs.admin.reader import reader, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import ConfigurationError, HeldUp, OptionInvalid
from salon_jobs.core.units import short_rate
from salon_jobs.db import clock
from salon_jobs.db.statements import rows as rows_of
from salon_jobs.jobs import registry
from salon_jobs.jobs.limits import LIFTED, ListedLimit, count_by_scope, limit_name, list_limits
from salon_jobs.jobs.options import parse_rate
from salon_jobs.models import Limit
from salon_jobs.verbs import verbs_of
from salon_jobs.words import rate_text, who_paused

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Limit]
else:
    ModelForm = forms.ModelForm  # generic only for type checkers


class NameInput(forms.TextInput):
    """Input that suggests the tasks and queues known to this process."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Return the input with its suggestions."""
        known = sorted({*registry.task_names(), *registry.queue_names()})
        options = format_html_join("", '<option value="{}">', ((each,) for each in known))
        shown = super().render(name, value, {**(attrs or {}), "list": f"{name}-known"}, renderer)
        return format_html('{}<datalist id="{}-known">{}</datalist>', shown, name, options)


class LimitForm(ModelForm):
    """Form for one limit, validated against the database as the operator."""

    # Why the limit, although valid, could not be saved.
    held: ClassVar[str] = ""

    unlimited = forms.BooleanField(
        required=False, label=_("No limit on running jobs"), help_text=_("Even if the code declares one")
    )

    class Meta:
        widgets: ClassVar = {"name": NameInput(attrs={"class": "vTextField"})}
        field_classes: ClassVar = {"rate": forms.CharField}  # with or without its unit

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django validates constraints on the instance's database; for a new one that would be the web role's database.
        self.instance._state.db = conf.reader_database
        if self.initial.get("max_concurrency") == LIFTED:
            self.initial.update(max_concurrency=None, unlimited=True)
        if self.initial.get("rate"):
            self.initial["rate"] = short_rate(self.initial["rate"])
        if conf.store_model is None and "kind" in self.fields:
            kind: Any = self.fields["kind"]
            kind.choices = [each for each in kind.choices if each[0] != Limit.Kind.STORE]
            if "name" in self.fields:
                said = _("A queue, a task, or task:key for jobs that share a concurrency key")
                self.fields["name"].help_text = said

    def clean_rate(self) -> float | None:
        """Read the rate, with or without its unit."""
        try:
            return parse_rate(self.cleaned_data["rate"]) if self.cleaned_data["rate"] else None
        except OptionInvalid:
            said = gettext('Give a number of jobs per second above 0, or text such as "100/m" (of s, m, h and d).')
            raise forms.ValidationError(said) from None

    def clean(self) -> dict[str, Any]:
        """Refuse a name that matches nothing; a store's ID, also of a name, is in the database's spelling."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.held:
            raise forms.ValidationError(self.held)
        kind, name = cleaned.get("kind"), cleaned.get("name")
        if kind and name:
            try:
                if kind == Limit.Kind.STORE:
                    name = _store_named(name)
                cleaned["name"] = limit_name(Limit.Kind(kind), name)
            except OptionInvalid as error:
                self.add_error("name", gettext("This name cannot be used: %(error)s.") % {"error": error})
        if cleaned.get("unlimited"):
            if cleaned.get("max_concurrency") is not None:
                self.add_error("unlimited", gettext("Clear this, or the number of jobs that may run at once."))
            cleaned["max_concurrency"] = LIFTED
        return cleaned


def _store_named(text: str) -> str:
    """Return the ID of the store with this name, or the only one with it in its name; else the text, perhaps an ID.

    Raises OptionInvalid for the names of several stores; and if names cannot be searched, for a text that is no ID.
    """
    with suppress(ValueError):
        if not isinstance(key := store_key().parse(text), str):
            return str(key)
    try:
        found = stores_called(text)
    except ConfigurationError as unsearched:
        try:
            return limit_name(Limit.Kind.STORE, text)
        except OptionInvalid as error:
            raise OptionInvalid(f"{error}; {unsearched}") from error
    if len(found) == 1:
        return str(*found)
    if not found or text in map(str, found):
        return text
    listed = ", ".join(f"{name} ({store})" for store, name in found.items())
    raise OptionInvalid(gettext("it may be %(stores)s: give the ID of one") % {"stores": listed})


class LimitList(ChangeList):
    """List of limits with their use: what the tasks declare, and how many jobs run."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        using = reader(request)
        limits = {(each.kind, each.name): each for each in list_limits(using=using)}
        running = count_by_scope(rows_of("running_counts", using=using))
        rows: list[Any] = list(self.result_list)
        for row in rows:
            row.listed = limits.get((row.kind, row.name))
            row.running = running[f"{row.kind}:{row.name}"]
        self.result_list = rows
        stored = set(Limit.objects.using(using).values_list("kind", "name"))
        is_whole = not self.query and not self.get_filters_params()
        self.declared = [_declared(each, running) for key, each in limits.items() if is_whole and key not in stored]


def _declared(limit: ListedLimit, running: Mapping[str, int]) -> str:
    """Format a limit that only the code declares, with how many jobs run under it; for several, under the busiest."""
    scope = f"{limit.kind}:{limit.name}"
    if scope.endswith("*"):
        each_key = gettext("each key of task %(task)s") % {"task": limit.name.removesuffix(":*")}
        what = gettext("each store") if limit.name == "*" else each_key
        count = max((count for each, count in running.items() if each.startswith(scope[:-1])), default=0)
        said = gettext("%(most)s at once (busiest runs %(count)s)")
    else:
        what, count = scope_name(limit.kind, limit.name), running[scope]
        said = gettext("%(most)s at once (%(count)s running)")
    most = None if limit.declared is None else said % {"most": f"{limit.declared:,}", "count": f"{count:,}"}
    return ", ".join(filter(None, (what, most, None if limit.rate is None else rate_text(limit.rate))))


class KindFilter(admin.ChoicesFieldListFilter):
    """Filter by kind, without stores in a project that has none."""

    def choices(self, changelist: Any) -> Any:
        hidden = "" if conf.store_model else Limit.Kind.STORE.label
        return [each for each in super().choices(changelist) if str(each["display"]) != hidden]


_VERBS: Final = verbs_of(Limit)


class LimitAdmin(OffersActions, ReaderAdmin):
    """Admin of limits, edited through the operator's database role; workers apply them within a second."""

    empty_hint = _("Add one to pause or limit a queue, a task or jobs that share a key.")
    list_class = LimitList
    list_display = ("scope", "state", "usage", "starts")
    list_display_links = ("scope",)
    list_filter = (("kind", KindFilter), "paused")
    search_fields = ("name",)
    form = LimitForm
    fields = ("kind", "name", "paused", "max_concurrency", "unlimited", "rate", "burst")
    help_texts: ClassVar = {
        "name": _("A queue, a task, a store's ID or name, or task:key for jobs that share a concurrency key"),
        "paused": _("No job starts while this is set; running jobs continue"),
        "max_concurrency": _("How many jobs may run at once, in all processes; empty: as the code declares"),
        "rate": _("Maximum starts: 5/s, 100/m, 1000/h or 10/d; empty for no limit"),
        "burst": _("How many starts a quiet time saves up; empty for those of a second"),
    }
    ordering = ("kind", "name")
    sortable_by = ()
    actions = actions_of(Limit)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a limit under its scope, with a store's name."""
        row: Limit | None = self.get_object(request, object_id)
        named = {} if row is None else {"subtitle": scope_name(row.kind, row.name)}
        return super().change_view(request, object_id, form_url, {**named, **(extra_context or {})})

    @admin.display(description=_("applies to"))
    def scope(self, row: Limit) -> str:
        """Show the scope of the limit, with a store's name."""
        return scope_name(row.kind, row.name)

    @admin.display(description=_("state"))
    def state(self, row: Limit) -> SafeString:
        """Show whether jobs start."""
        if not row.paused:
            return badge(gettext_noop("active"), "good")
        return below(badge("paused", "warn"), who_paused(row))

    @admin.display(description=_("running"))
    def usage(self, row: Any) -> SafeString | str:
        """Show how many jobs run, and how many may; for a store, with a link to its page."""
        most, declared = row.listed and row.listed.max_concurrency, row.listed and row.listed.declared
        said = gettext("%(running)s of %(most)s") if most is not None else gettext("%(running)s, no limit")
        shown = said % {"running": f"{row.running:,}", "most": f"{most or 0:,}"}
        if declared not in (None, most):
            shown = gettext("%(limit)s (declared: %(declared)s)") % {"limit": shown, "declared": f"{declared:,}"}
        is_of_store = row.kind == str(Limit.Kind.STORE)
        return self.link_to_store(store_key().parse(row.name), shown) if is_of_store else shown

    @admin.display(description=_("rate"))
    def starts(self, row: Limit) -> str:
        """Show how many jobs may start."""
        return "-" if row.rate is None else rate_text(row.rate)

    @admin.display(description=_("no limit on running jobs"), boolean=True)
    def unlimited(self, row: Limit) -> bool:
        """Return whether "no limit" was set, for users who may only look."""
        return row.max_concurrency == LIFTED

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse users limited to one store: a limit can affect all stores."""
        return sees_all_stores(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse users who are limited to a store."""
        return sees_all_stores(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse users who are limited to a store."""
        return sees_all_stores(request) and super().has_delete_permission(request, obj)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form, which tells why the limit could not be saved, if it could not."""
        form = super().get_form(request, obj, change=change, **kwargs)
        form.held = getattr(request, "held", "")
        return form

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the form again, as it was sent, if another session holds the limit."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except HeldUp as error:
            setattr(request, "held", f"{error}.")  # noqa: B010 - the stubs declare no such attribute
            return super().changeform_view(request, *args, **kwargs)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        """Go back to the limit if another session holds it, and take the record of its deletion back."""
        try:
            with transaction.atomic(using=router.db_for_write(LogEntry)):
                return super().delete_view(request, object_id, extra_context)
        except HeldUp as error:
            messages.error(request, f"{error}.")
            return HttpResponseRedirect(request.path.removesuffix("delete/") + "change/")

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        """Save as the operator, and record who paused it."""
        if "paused" in form.changed_data:
            at = clock.now(reader(request))
            obj.paused_at, obj.paused_by = (at, user_name(request)) if obj.paused else (None, "")
        _VERBS["save"].call([obj.scope], obj, using=reader(request))

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        """Delete as the operator."""
        _VERBS["delete"].apply([obj.scope], by=user_name(request), using=reader(request))
