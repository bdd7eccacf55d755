"""Admin actions on jobs: retry, cancel, discard and change, with a confirmation page."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import timezone

from salon_jobs.admin.actions import BATCH, ask_first, confirmed, how_many, log_changed, operate
from salon_jobs.admin.base import ReadOnlyAdmin, may, may_everywhere, reader
from salon_jobs.core.records import ActionResult
from salon_jobs.jobs import limits
from salon_jobs.jobs.control import cancel_jobs, change_jobs, discard_jobs, retry_jobs
from salon_jobs.models import Job, Limit


class RetryForm(forms.Form):
    """Form for the time of a retry."""

    at = forms.DateTimeField(
        label="Due at", required=False, widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["at"].help_text = f"Empty: now. Time zone: {timezone.get_current_timezone_name()}"


class ChangeForm(forms.Form):
    """Form for another priority, queue or both."""

    priority = forms.IntegerField(required=False, min_value=-32768, max_value=32767, help_text="Smaller first")
    queue = forms.CharField(required=False, max_length=100, validators=[RegexValidator(r"\A[^\x00\ud800-\udfff]*\Z")])

    def clean(self) -> dict[str, Any]:
        """Refuse a form that changes nothing."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and cleaned.get("priority") is None and not cleaned.get("queue"):
            raise forms.ValidationError("Give a priority, a queue or both.")
        return cleaned


class PauseForm(forms.Form):
    """Form for what to pause or to resume. A scope is written kind:name."""

    verb = forms.ChoiceField(
        label="What to do",
        choices=[("paused", "Pause"), ("resumed", "Resume")],
        widget=forms.RadioSelect,
        initial="paused",
    )
    scopes = forms.MultipleChoiceField(label="Of what", widget=forms.CheckboxSelectMultiple)

    def __init__(
        self, *args: Any, scopes: Sequence[tuple[Limit.Kind, str]], paused: Container[tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["scopes"]
        field.choices = [
            (f"{kind}:{name}", f"{kind.label} {name}{' (paused now)' if (kind, name) in paused else ''}")
            for kind, name in scopes
        ]


class JobActions(ReadOnlyAdmin):
    """Base admin with the actions on jobs, which confirm how many they affect and report why they left any alone."""

    actions = ("retry", "cancel", "discard", "change", "pause")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may retry jobs."""
        return may(request, "salon_jobs.retry_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may cancel jobs."""
        return may(request, "salon_jobs.cancel_job")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may discard jobs."""
        return may(request, "salon_jobs.discard_job")

    def has_reorder_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change the priority or queue of jobs."""
        return may(request, "salon_jobs.change_job")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may pause queues, tasks and stores, which takes the permission to edit limits."""
        return may_everywhere(request, "salon_jobs.add_limit") and may(request, "salon_jobs.change_limit")

    @admin.action(description="Retry selected jobs", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> TemplateResponse | None:
        """Retry the selected failed or cancelled jobs, now or at a given time."""
        form = RetryForm(request.POST if confirmed(request) else None)
        if not form.is_valid():
            what = f"{how_many(queryset, 'job')} selected: those that failed or were cancelled will be queued again."
            return self._ask(request, queryset, "retry", "Retry jobs", what, form)
        at = form.cleaned_data["at"]
        change = partial(retry_jobs, at=at)
        self._operate(
            request, queryset, change, "retried" if at is None else f"queued again for {at:%Y-%m-%d %H:%M %Z}"
        )
        return None

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> TemplateResponse | None:
        """Cancel the selected jobs; running ones are asked to end."""
        if not confirmed(request):
            what = f"{how_many(queryset, 'job')} selected: those that wait, run or failed will be cancelled."
            return self._ask(request, queryset, "cancel", "Cancel jobs", what)
        self._operate(request, queryset, cancel_jobs, "cancelled")
        return None

    @admin.action(description="Discard selected jobs", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Job]) -> TemplateResponse | None:
        """Discard the selected queued and failed jobs for good."""
        if not confirmed(request):
            what = f"{how_many(queryset, 'job')} selected: nothing will be done about those that wait or failed."
            return self._ask(request, queryset, "discard", "Discard jobs", what)
        self._operate(request, queryset, discard_jobs, "discarded")
        return None

    @admin.action(description="Change priority or queue of selected jobs", permissions=["reorder"])
    def change(self, request: HttpRequest, queryset: QuerySet[Job]) -> TemplateResponse | None:
        """Change the priority or queue of the selected queued jobs."""
        form = ChangeForm(request.POST if confirmed(request) else None)
        if not form.is_valid():
            what = f"{how_many(queryset, 'job')} selected: those that wait will be changed."
            return self._ask(request, queryset, "change", "Change priority or queue", what, form)
        values = {name: value for name, value in form.cleaned_data.items() if value not in (None, "")}
        done = " and ".join(f"given {name} {value}" for name, value in values.items())
        self._operate(request, queryset, partial(change_jobs, **values), done)
        return None

    @admin.action(description="Pause or resume queue, task or store of selected jobs", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Job]) -> TemplateResponse | None:
        """Pause or resume a queue, task or store of the selected jobs: all its jobs, not only the selected ones."""
        using = reader(request)
        paused = Limit.objects.using(using).filter(paused=True).values_list("kind", "name")
        form = PauseForm(request.POST if confirmed(request) else None, scopes=_scopes(queryset), paused=set(paused))
        if not form.is_valid():
            what = (
                f"{how_many(queryset, 'job')} selected: all jobs of what you choose are held back or start again, not"
                " these alone."
            )
            return self._ask(request, queryset, "pause", "Pause or resume", what, form)
        verb = form.cleaned_data["verb"]
        for scope in form.cleaned_data["scopes"]:
            kind, _, name = scope.partition(":")
            operation = limits.pause if verb == "paused" else limits.resume
            operation(**{"store_id" if kind == Limit.Kind.STORE else kind: name}, using=using)
            log_changed(request, list(Limit.objects.using(using).filter(kind=kind, name=name)), verb)
            self.message_user(request, f"{kind.capitalize()} {name} {verb}.", messages.SUCCESS)
        return None

    def _ask(
        self,
        request: HttpRequest,
        queryset: QuerySet[Job],
        action: str,
        title: str,
        line: str,
        form: Form | None = None,
    ) -> TemplateResponse:
        return ask_first(request, self, queryset, action=action, title=title, lines=[line], form=form)

    def _operate(
        self, request: HttpRequest, queryset: QuerySet[Job], change: Callable[..., list[ActionResult[int]]], done: str
    ) -> None:
        asked = operate(request, queryset.only("task"), partial(change, using=reader(request)), done=done, noun="job")
        if asked:
            said = "1 of them runs and is" if asked == 1 else f"{asked:,} of them run and are"
            self.message_user(request, f"{said} asked to end.", messages.SUCCESS)


def _scopes(queryset: QuerySet[Job]) -> list[tuple[Limit.Kind, str]]:
    """Return the queues, tasks and stores of the newest thousand selected jobs."""
    kinds = (Limit.Kind.QUEUE, Limit.Kind.TASK, Limit.Kind.STORE)
    rows = list(queryset.order_by("-pk").values_list("queue", "task", "store_id")[:BATCH])
    names = [sorted({str(row[number]) for row in rows if row[number] is not None}) for number in range(len(kinds))]
    return [(kind, name) for kind, of_kind in zip(kinds, names, strict=True) for name in of_kind[:50]]
