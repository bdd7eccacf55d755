"""Actions on selected rows: permissions, confirmation page, batches and reports."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import model_ngettext
from django.contrib.contenttypes.models import ContentType
from django.core.validators import RegexValidator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_noop, ngettext, override
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.base import ModelAdmin, ReadOnlyAdmin
from salon_jobs.admin.reader import may, reader, sees_all_stores
from salon_jobs.core.errors import CronInvalid, HeldUp, OptionInvalid
from salon_jobs.jobs.held import Patience
from salon_jobs.schedules.cron import CronExpression
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.verbs import Verb, verbs_of
from salon_jobs.words import duration

_CONFIRMED = "confirmed"
_STORE = "store"
_NEWEST = "newest"
# The page to return to: that of the row whose button was used.
_BACK = "back"
_REASONS_SHOWN = 5
# The most rows that a confirmation page names.
_NAMED = 10
# The most changed rows to which a report links.
_LINKED = 5
_ENTRIES = 50
BATCH = 1000
_COUNTED = 100_000
LONGEST_S = 20.0


class ActionForm(forms.Form):
    """Form of a confirmation page: the arguments of a verb."""

    def __init__(self, verb: Verb, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data)
        self._verb = verb
        for name in verb.takes:
            self.fields[name] = FIELDS[name]()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that were given."""
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def clean(self) -> dict[str, Any]:
        """Refuse to do nothing."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self._verb.nothing_given and not self.errors and not self.arguments:
            raise forms.ValidationError(gettext(self._verb.nothing_given))
        return cleaned


# The fields in which users give the arguments of verbs.
FIELDS: Final[Mapping[str, Callable[[], forms.Field]]] = {
    "arguments": lambda: forms.CharField(
        label=_("Arguments"),
        widget=forms.Textarea(attrs={"class": "vLargeTextField salon-jobs-json", "spellcheck": "false"}),
    ),
    "at": lambda: forms.DateTimeField(
        label=_("Due at"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text=gettext("Leave empty for now. Time zone: %s") % timezone.get_current_timezone_name(),
    ),
    "from_start": lambda: forms.BooleanField(
        label=_("From the start"), required=False, help_text=_("Run again the steps that a job has done")
    ),
    "priority": lambda: forms.IntegerField(
        label=_("Priority"), required=False, min_value=-32768, max_value=32767, help_text=_("Lower numbers run first")
    ),
    "queue": lambda: forms.CharField(
        label=_("Queue"), required=False, max_length=100, validators=[RegexValidator(r"\A[^\x00\ud800-\udfff]*\Z")]
    ),
    "line": lambda: forms.CharField(
        label=_("Line"),
        max_length=255,
        help_text=_("Minute, hour, day of month, month, day of week, in the time zone of the entry"),
        validators=[check_line],
    ),
    "reason": lambda: forms.CharField(
        label=_("Reason, for the record"), max_length=1000, widget=forms.TextInput(attrs={"class": "vTextField"})
    ),
}


def check_line(line: str) -> None:
    """Check a field with a cron line. Raises ValidationError naming the field of the line."""
    try:
        CronExpression(line)
    except CronInvalid as error:
        raise forms.ValidationError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Action:
    """Operators' verb as an action on the selected rows of an admin, confirmed first if it has a question.

    This one changes each row and reports the results; others override ``run``.
    """

    verb: Verb
    do_not_call_in_templates: ClassVar[bool] = True
    # Offered only on the page of a row.
    of_one: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.verb.name

    @property
    def question(self) -> str:
        return gettext(str(self.verb.question))

    @property
    def short_description(self) -> str:
        """The action's name for the selected rows."""
        return re.sub(r"[\[\]]", "", self._label)

    @property
    def label(self) -> str:
        """The action's name for one row."""
        return re.sub(r"\[.*?\]", "", self._label)

    @property
    def _label(self) -> str:
        return gettext(str(self.verb.label)) % {"rows": self.verb.of._meta.verbose_name_plural}

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - of the instance, not the class
        """The name by which Django offers it, as if it were a function."""
        return self.name

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user may take this action."""
        is_for = self.verb.for_stores or sees_all_stores(request)
        return is_for and all(may(request, f"salon_jobs.{each}") for each in self.verb.permissions)

    def __call__(self, model_admin: ActionAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Ask, or change the rows and report; then return to the page that offered it. Called by Django."""
        data: Mapping[str, Any] | None = None if self.question else {}
        # In the same store: another tab can choose another one.
        if self.question and _CONFIRMED in request.POST and request.POST.get(_STORE, "") == _store(request):
            data = request.POST
        newest = request.POST.get(_NEWEST, "")
        try:
            form = self.make_form(data, request, queryset)
            if form.is_valid():
                # Without rows written after the confirmation page, which did not count them.
                known = newest.isdecimal() and len(newest) < 20
                self.run(model_admin, request, queryset.filter(pk__lte=newest) if known else queryset, form)
            if form.errors or not form.is_bound:
                return self._ask(model_admin, request, queryset, form)
        except OptionInvalid as error:
            messages.warning(request, f"{error}.")
        except HeldUp as error:
            messages.error(request, f"{error}.")
        back = _back(request)
        return HttpResponseRedirect(back) if back else None

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Any]) -> ActionForm:
        """Return the form, bound to ``data`` unless that is None."""
        return ActionForm(self.verb, data)

    def preview(self, request: HttpRequest, queryset: QuerySet[Any], form: ActionForm) -> tuple[list[str], bool]:
        """Return the text of the confirmation page, and whether there is anything to confirm.

        It lists the effects on the selected rows by state. Other users may change the rows until it is confirmed.
        """
        count = queryset.order_by()[: _COUNTED + 1].count()
        if count > _COUNTED:
            said = gettext("More than %(count)s %(rows)s selected.")
        else:
            said = ngettext("%(count)s %(rows)s selected.", "%(count)s %(rows)s selected.", count)
        lines = [said % _counted(min(count, _COUNTED), queryset.model)]
        if not self.verb.effects:
            return [*lines, self.question], True
        name = "state" if hasattr(queryset.model, "state") else "status"
        states = Counter(queryset.order_by().values_list(name, flat=True)[:_COUNTED])
        for state, number in sorted(states.items()):
            effect = gettext(self.verb.effects.get(state, gettext_noop("nothing is done")))
            parts = {**_counted(number, queryset.model), "state": gettext(state), "effect": effect}
            lines.append(gettext("%(count)s %(state)s %(rows)s: %(effect)s.") % parts)
        return lines, True

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Any], form: ActionForm) -> None:
        """Change the rows a thousand at a time, log the changed ones, and report how many, and why others were not.

        Stops after ``LONGEST_S``, before a web server cuts the request off and the report is lost.
        """
        arguments, model, using, patience = form.arguments, queryset.model, reader(request), Patience()
        done, said = self.verb.done_with(arguments), self.verb.done_with(arguments, gettext)
        end = time.monotonic() + LONGEST_S
        unchanged = 0
        changed: Counter[str] = Counter()
        reasons: list[str] = []
        asked = self.verb.asked
        links: dict[str, list[SafeString]] = {what: [] for what in (done, asked) if what}
        for rows in _batches(queryset, oldest_first=self.verb.oldest_first):
            keys = [getattr(row, self.verb.key) for row in rows]
            try:
                results = self.verb.apply(keys, by=user_name(request), using=using, patience=patience, **arguments)
            except HeldUp as error:  # the rows before these are changed
                messages.error(request, f"{error}.")
                break
            pairs = list(zip(rows, results, strict=True))
            for what, linked in links.items():
                alike = [row for row, each in pairs if each.changed and bool(asked and each.detail) == (what == asked)]
                log_changed(request, alike, what)
                linked += [model_admin.link(type(row), row.pk, row) for row in alike[: _LINKED - len(linked)]]
                changed[what] += len(alike)
            refused = [(row, result) for row, result in pairs if not result.changed]
            unchanged += len(refused)
            reasons += [
                not_done(model, row.pk, said, result.detail) for row, result in refused[: _REASONS_SHOWN - len(reasons)]
            ]
            if len(rows) == BATCH and time.monotonic() > end:
                text = gettext(
                    "Stopped after %(time)s; more %(rows)s may match."
                    " Run the action again, or use manage.py salon_jobs."
                )
                shown = {"time": duration(LONGEST_S), "rows": model._meta.verbose_name_plural}
                messages.warning(request, text % shown)
                break
        more = unchanged - len(reasons)
        say_changed(request, model, changed=changed[done], reasons=reasons, done=said, more=more, links=links[done])
        if changed[asked]:
            say_changed(request, model, changed=changed[asked], reasons=(), done=gettext(asked), links=links[asked])

    def _ask(
        self, model_admin: ActionAdmin, request: HttpRequest, queryset: QuerySet[Any], form: ActionForm
    ) -> TemplateResponse:
        """Return the confirmation page, which submits the same selection again."""
        lines, can_confirm = self.preview(request, queryset, form)
        return model_admin.page(
            request,
            "ask_first",
            self.short_description,
            lines=lines,
            rows=[model_admin.line(row) for row in queryset.order_by("-pk")[:_NAMED]],
            back=_back(request) or request.get_full_path().removesuffix("add/"),
            can_confirm=can_confirm,
            form=form,
            confirmed=_CONFIRMED,
            selected=request.POST.getlist(helpers.ACTION_CHECKBOX_NAME),
            checkbox_name=helpers.ACTION_CHECKBOX_NAME,
            store=_store(request),
            hidden={
                "action": self.name,
                "index": 0,
                "select_across": request.POST.get("select_across", "0"),
                _STORE: _store(request),
                _BACK: _back(request),
                _NEWEST: queryset.order_by("-pk").values_list("pk", flat=True).first() or 0,
            },
        )


def actions_of(model: type[Model], **others: type[Action]) -> tuple[Any, ...]:
    """Return the actions on a model's rows, one for each verb; ``others`` maps verbs to their own classes."""
    verbs = (verb for verb in verbs_of(model).values() if verb.permissions)
    return tuple(others.get(verb.name, Action)(verb) for verb in verbs)


class OffersActions(ModelAdmin):
    """Admin that offers each ``Action`` to the users who may take it."""

    def line(self, row: Any) -> str:
        """Return the name of a row on a confirmation page."""
        return str(row)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that the user may take. Django passes ``action_location`` from 6.1 on."""
        location: dict[str, Any] = {} if action_location is None else {"action_location": action_location}
        actions: dict[str, Any] = super().get_actions(request, **location)
        actions.pop("delete_selected", None)  # what may be deleted has a verb for it
        return {
            name: each
            for name, each in actions.items()
            if not isinstance(action := getattr(each, "func", None) or each[0], Action) or action.is_allowed(request)
        }


class ActionAdmin(OffersActions, ReadOnlyAdmin):
    """Read-only admin whose list and rows' pages offer actions."""

    has_history = True

    def get_action_choices(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Leave actions for a row's page out of the list; that page posts to it."""
        choices: Any = super().get_action_choices(request, *args, **kwargs)
        of_one = {each.name for each in self.actions or () if isinstance(each, Action) and each.of_one}
        return [each for each in choices if request.method == "POST" or each[0] not in of_one]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list; a button in a row acts only on that row."""
        name, _, pk = request.POST.get("row_action", "").partition(":")
        if name:
            post = request.POST.copy()
            post.setlist(helpers.ACTION_CHECKBOX_NAME, [pk])
            post["action"], post["index"], post["select_across"] = name, "0", "0"
            setattr(request, "POST", post)  # noqa: B010 - the stubs declare no setter
        return super().changelist_view(request, extra_context)

    @admin.display(description=_("actions"))
    def row_actions(self, row: Any) -> SafeString:
        """Offer in the row the actions that its state allows and that need no form."""
        buttons = [
            (action.name, row.pk, action.question, action.label) for action in row.buttons if action.verb.in_rows
        ]
        template = '<button type="submit" class="button" name="row_action" value="{}:{}" title="{}">{}</button> '
        return format_html_join("", template, buttons)

    def log_of(self, pk: int | str) -> list[tuple[datetime, str, str]]:
        """Return the entries about a row, with time, user and action, newest first, at most fifty."""
        rows = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(self.model), object_id=str(pk))
        entries = list(rows.select_related("user").order_by("-action_time")[:_ENTRIES])
        # Django's own times are naive without USE_TZ.
        times = [at if timezone.is_aware(at) else timezone.make_aware(at) for at in (e.action_time for e in entries)]
        pairs = zip(times, entries, strict=True)
        return [(at, str(entry.user), str(entry.get_change_message())) for at, entry in pairs]

    def state_of(self, row: Any) -> str:
        """Return the state by which actions are offered for a row."""
        return ""

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Give each row the actions that its state allows."""
        offered = [each for each in self.actions or () if isinstance(each, Action) and each.is_allowed(request)]
        for row in super().described(rows, request):
            state = self.state_of(row)
            row.buttons = [action for action in offered if action.verb.is_offered_in(state)]
        return rows


def _batches(queryset: QuerySet[Any], *, oldest_first: bool) -> Iterator[list[Any]]:
    """Yield all rows in batches by id; newest first leaves out those written in the meantime."""
    rows = queryset.order_by("pk" if oldest_first else "-pk")
    batch = list(rows[:BATCH])
    while batch:
        yield batch
        last = batch[-1].pk
        batch = list((rows.filter(pk__gt=last) if oldest_first else rows.filter(pk__lt=last))[:BATCH])


def user_name(request: HttpRequest) -> str:
    """Return the name of the signed-in user, for the record."""
    user: Any = request.user
    return str(user.get_username())


def log_changed(request: HttpRequest, rows: Sequence[Any], done: str) -> None:
    """Write one entry for each row to the admin's log, whatever the language of the user."""
    user: Any = request.user
    with override(None):
        LogEntry.objects.log_actions(user_id=user.pk, queryset=list(rows), action_flag=CHANGE, change_message=done)


def say_changed(
    request: HttpRequest,
    model: type[Model],
    *,
    changed: int,
    reasons: Sequence[str],
    done: str,
    more: int = 0,
    links: Sequence[SafeString] = (),
) -> None:
    """Report how many rows were changed, with links to the first, why some were not, and how many more were not."""
    if changed:
        shown = format_html_join("", "{}{}", ((", " if number else " ", link) for number, link in enumerate(links)))
        said = gettext("%(count)s %(rows)s %(done)s.") % {**_counted(changed, model), "done": done}
        messages.success(request, format_html("{}{}", said, shown))
    for text in reasons:
        messages.warning(request, text)
    if more:
        said = ngettext("%(count)s more %(rows)s was not %(done)s.", "%(count)s more %(rows)s were not %(done)s.", more)
        messages.warning(request, said % {**_counted(more, model), "done": done})


def not_done(model: type[Model], row: object, done: str, why: object) -> str:
    """Report why a row was not changed."""
    said = {"row": capfirst(model._meta.verbose_name), "id": row, "done": done, "why": why}
    return gettext("%(row)s %(id)s was not %(done)s: %(why)s.") % said


def _counted(count: int, model: type[Model]) -> dict[str, str]:
    """Return a count with the model's name, in the right number, for a sentence."""
    return {"count": f"{count:,}", "rows": model_ngettext(model._meta, count)}


def _back(request: HttpRequest) -> str:
    """Return the page of this site to return to, or ""."""
    back = request.POST.get(_BACK, "")
    return back if url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}) else ""


def _store(request: HttpRequest) -> str:
    return "" if sees_all_stores(request) else str(current_store_id() or "")
