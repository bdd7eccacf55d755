"""Admin page of schedules that are rows, with their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.actions import ActionAdmin, actions_of, check_line, log_changed, user_name
from salon_jobs.admin.base import address_of_list
from salon_jobs.admin.cells import badge, below, lines_of, next_tick, now_of, payload_of, time_of
from salon_jobs.admin.job_actions import ActionOnOne, ArgumentsForm, signature_of
from salon_jobs.admin.process import RunNow
from salon_jobs.admin.reader import reader, refusal, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import CronInvalid, SalonJobsError
from salon_jobs.db.statements import rows as rows_of
from salon_jobs.jobs import registry
from salon_jobs.jobs.held import Patience
from salon_jobs.jobs.results import JobHandle
from salon_jobs.jobs.task import Task
from salon_jobs.models import Job, Schedule
from salon_jobs.schedules.stored import CHANGED, timing_of
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.context import context_of
from salon_jobs.verbs import Verb, verbs_of
from salon_jobs.words import ago, became_of, duration, instant, who_paused

_HISTORY = 20
_LINE = _("Minute, hour, day of month, month, day of week; or leave it empty and give Every")
_ZONE = _("Of the line, such as Asia/Tokyo; empty: UTC")
_SPAN = _("Hours, minutes and seconds, such as 00:10:00; days before them")
_LATE = _("How late a tick may still fire; empty: the default")
_OVERLAP = _("Whether a tick fires while the last one's job is not done")
_SAVED: Final = {
    "created": gettext_noop("Schedule {} added."),
    "changed": gettext_noop("Schedule {} changed."),
    "kept": gettext_noop("Schedule {} left as it is."),
}


class RunScheduleNow(RunNow):
    """Action that enqueues the jobs of schedules at once, as their stores."""

    def start(self, row: Schedule, request: HttpRequest, patience: Patience) -> JobHandle:
        with context_of(row.store_id):
            shared: dict[str, Any] = {"by": user_name(request), "look": reader(request), "patience": patience}
            handle: JobHandle = self.verb.call([row.pk], row.pk, **shared)
        return handle


class ScheduleForm(ArgumentsForm):
    """Form for the timing, options and arguments of a schedule; ``schedule`` checks them."""

    line = forms.CharField(label=_("Line"), required=False, max_length=255, validators=[check_line], help_text=_LINE)
    timezone = forms.CharField(label=_("Time zone"), required=False, max_length=64, help_text=_ZONE)
    every = forms.DurationField(label=_("Every"), required=False, help_text=_SPAN)
    catch_up = forms.DurationField(label=_("Catch up"), required=False, help_text=_LATE)
    jitter = forms.DurationField(label=_("Jitter"), required=False, help_text=_("Jobs are delayed by up to this"))
    overlap = forms.BooleanField(label=_("Overlap"), required=False, help_text=_OVERLAP)

    def __init__(self, verb: Verb, data: Mapping[str, Any] | None, row: Schedule) -> None:
        super().__init__(verb, data, row)
        self.initial = timing_of(row)
        if row.pk is not None:
            shown = row.changed_at.isoformat()  # with microseconds, which Django's own format leaves out
            self.fields["shown"] = forms.DateTimeField(widget=forms.HiddenInput, initial=shown)

    def clean_shown(self) -> None:
        """Detect concurrent edits: compare with the row as the form showed it."""
        self.row.changed_at = self.cleaned_data["shown"]


class ChangeSchedule(ActionOnOne):
    """Action that changes the timing, options and arguments of a schedule."""

    form = ScheduleForm
    says = gettext_noop("Schedule %s: one that is due as before keeps its next tick, and a paused one stays paused.")

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Schedule], form: Any) -> None:
        """Save the schedule, log the changes, and link to it; attach an error to its field."""
        row, given, before = form.row, form.arguments, {**form.initial, "arguments": form.stored}
        try:
            timing = {name: given[name] for name in form.initial if name in given}
            named = [] if row.pk is None else [row.pk]
            handle = self.verb.call(named, row, given["arguments"], look=reader(request), **timing)
        except SalonJobsError as error:
            said = str(error)
            of_cron = ("timezone" if "time zone" in said else "line") if isinstance(error, CronInvalid) else None
            field = next((name for name in form.fields if said.startswith(name)), of_cron)
            if said == CHANGED and (entries := model_admin.log_of(row.pk)):
                _, user, done = entries[0]
                parts = {"why": gettext(said), "user": user, "done": done}
                said = gettext("%(why)s (the last change here, by %(user)s: %(done)s)") % parts
            form.add_error(field, said)
            return
        row.pk = handle.id
        if handle.action == "created":
            model_admin.log_addition(request, row, self.verb.done)
        elif handle.action == "changed":
            changed = [name for name, value in before.items() if (given.get(name) or None) != (value or None)]
            log_changed(request, [row], f"changed: {', '.join(changed)}")
        messages.success(request, format_html(gettext(_SAVED[handle.action]), model_admin.link(Schedule, row.pk, row)))


class NewScheduleForm(ScheduleForm):
    """Form for a new schedule; for staff of one store, only of its tasks."""

    task = forms.ChoiceField(label=_("Task"))
    store_id = forms.CharField(label=_("Store"), required=False, help_text=_("Its ID, for the task of a store"))
    key = forms.CharField(label=_("Key"), max_length=255, help_text=_("Names the schedule within its store"))
    field_order = ("task", "store_id", "key")

    def __init__(self, verb: Verb, data: Mapping[str, Any] | None, request: HttpRequest) -> None:
        given, is_limited = data or {}, not sees_all_stores(request)
        store = current_store_id() if is_limited else None
        named = {"task": given.get("task", ""), "key": given.get("key", ""), "store_id": store}
        super().__init__(verb, data, Schedule(**named, payload={}, timezone="UTC", overlap=True))
        offered: Any = self.fields["task"]
        choices = ((each.name, signature_of(each)) for each in registry.tasks() if each.is_store_task or not is_limited)
        offered.choices = sorted(choices)
        if is_limited or conf.store_model is None:
            del self.fields["store_id"]
        if conf.store_model is None:
            self.fields["key"].help_text = _("Names the schedule")

    def clean_store_id(self) -> None:
        """Read the store; required for a store task, refused for others."""
        given, task_name = self.cleaned_data["store_id"], self.cleaned_data.get("task")
        declared = registry.get_declaration(task_name) if task_name else None
        # Django's tasks run for a store as well as for none.
        if isinstance(declared, Task) and declared.is_store_task != bool(given):
            raise forms.ValidationError(gettext("The task of a store needs it, and other tasks have none."))
        try:
            self.row.store_id = store_key().parse(given) if given else None
        except ValueError as error:
            raise forms.ValidationError(gettext("It %(error)s.") % {"error": error}) from None

    def clean_arguments(self) -> dict[str, Any]:
        """Check the arguments, if the task and the store are known."""
        return {} if self.errors.keys() & {"task", "store_id"} else super().clean_arguments()


class AddSchedule(ChangeSchedule):
    """Action without rows, which adds a schedule."""

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return NewScheduleForm(self.verb, data, request)

    def preview(self, request: HttpRequest, queryset: QuerySet[Any], form: Any) -> tuple[list[str], bool]:
        return [gettext("Its first tick is the first that is due from now on.")], True


_CHANGE: Final = verbs_of(Schedule)["change"]
_ADD: Final = AddSchedule(
    replace(_CHANGE, permissions=("add_schedule",), label=gettext_noop("Add schedule"), done=gettext_noop("added"))
)


class ScheduleAdmin(ActionAdmin):
    """Admin of schedules: when they are due, the outcomes of their last ticks, and buttons to change them."""

    has_rows_of_stores = True
    list_display = ("name", "store", "due", "next", "last", "row_actions")
    list_display_links = ("name",)
    fields = ("task", "store", "due", "payload_shown", "next", "options", "history", "created", "changed")
    search_fields = ("key__exact", "task__exact")
    empty_hint = _("Your code adds them: salon_jobs.schedule(…).")
    deferred = ("payload",)
    actions = actions_of(Schedule, run_now=RunScheduleNow, change=ChangeSchedule)
    payload_shown = payload_of(_("payload"))
    created = time_of("created_at", _("added"))
    changed = time_of("changed_at", _("last changed"))

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Add to each row its last ticks and its buttons."""
        for row in rows:
            row.history, row.now = [], now_of(row)
        by_id = {row.pk: row for row in rows}
        # A page has one row; a list needs only the last tick of each.
        asked = {"ids": list(by_id), "ticks": _HISTORY if len(rows) == 1 else 1}
        for id_, *tick, outcome in rows_of("schedule_results", asked, using=reader(request)):
            by_id[id_].history.append((*tick, outcome or ""))
        return super().described(rows, request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may add schedules, and look at them."""
        return self.has_view_permission(request) and _ADD.is_allowed(request)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> Any:
        """Ask for a schedule, and add it."""
        if not self.has_add_permission(request):
            raise PermissionDenied(refusal(request, "salon_jobs.view_schedule", "salon_jobs.add_schedule"))
        answer = _ADD(self, request, self.get_queryset(request).none())
        return answer or HttpResponseRedirect(address_of_list(Schedule, self.admin_site))

    def state_of(self, row: Any) -> str:
        return "active" if row.paused_at is None else "paused"

    @admin.display(description=_("schedule"))
    def name(self, row: Any) -> SafeString:
        """Name the schedule by its key, and below the task that it starts."""
        return below(row.key, row.task)

    @admin.display(description=_("due"))
    def due(self, row: Any) -> SafeString | str:
        """Show the cron line with its time zone, or the period."""
        if row.every is not None:
            return gettext("every %(time)s") % {"time": duration(row.every.total_seconds())}
        return format_html("<code>{}</code> {}", row.line, row.timezone)

    @admin.display(description=_("next"))
    def next(self, row: Any) -> SafeString | str:
        if row.paused_at is not None:
            return below(badge("paused", "warn"), who_paused(row))
        return next_tick(row.next_at, row.now)

    @admin.display(description=_("options"))
    def options(self, row: Any) -> SafeString:
        """Describe how late a tick fires, by how much jobs are delayed, and whether they may overlap."""
        late = {"time": duration(row.catch_up.total_seconds())}
        lines = [gettext("missed ticks run if they are at most %(time)s late; older ones are lost") % late]
        if row.jitter:
            jitter = {"time": duration(row.jitter.total_seconds())}
            lines.append(gettext("jobs are delayed by up to %(time)s") % jitter)
        if not row.overlap:
            lines.append(gettext("a tick is skipped while the last one's job is not done"))
        return lines_of(lines)

    @admin.display(description=_("last tick"))
    def last(self, row: Any) -> SafeString | str:
        """Show the outcome of the last tick, with a link to its job while it exists."""
        if not row.history:
            return "-"
        [tick_at, by_hand, _, job_id, outcome] = row.history[0]
        kind = "bad" if outcome.startswith(("failed", "missed")) else "good" if outcome == "succeeded" else "quiet"
        shown = badge(became_of(outcome), kind)
        when = format_html("{} {}", ago(tick_at, row.now), gettext("by hand") if by_hand else "")
        return below(shown if job_id is None else self.link(Job, job_id, shown), when)

    @admin.display(description=_("history"))
    def history(self, row: Any) -> SafeString | str:
        """List the last ticks and the runs by hand, newest first, with the outcomes of their jobs."""
        lines: list[SafeString] = []
        for tick_at, by_hand, run_by, job_id, outcome in row.history:
            shown: SafeString | str = became_of(outcome)
            shown = shown if job_id is None else self.link(Job, job_id, shown)
            said = gettext("{time}, run now by {user}: {became}") if by_hand else "{time}: {became}"
            lines.append(format_html(said, time=instant(tick_at), user=run_by or gettext("code"), became=shown))
        return lines_of(lines) if lines else gettext("none yet")
