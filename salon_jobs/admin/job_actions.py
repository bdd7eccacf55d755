"""Actions on jobs: retry, cancel, discard, change, and pause or resume what they belong to."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import lazy

from salon_jobs.admin.actions import BATCH, Action, ActionForm, RowAction, log_changed, user_name
from salon_jobs.admin.base import reader, scope_name
from salon_jobs.conf import settings as conf
from salon_jobs.jobs.control import cancel_jobs, change_jobs, discard_jobs, retry_jobs
from salon_jobs.jobs.limits import set_paused
from salon_jobs.models import Job, Limit


class RetryForm(ActionForm):
    """Form for the time of a retry."""

    at = forms.DateTimeField(
        label="Due at", required=False, widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["at"].help_text = f"Leave empty for now. Time zone: {timezone.get_current_timezone_name()}"

    def describe(self, arguments: dict[str, Any]) -> str:
        return f"queued again for {arguments['at']:%Y-%m-%d %H:%M %Z}" if arguments else ""


class ChangeForm(ActionForm):
    """Form for another priority, queue or both."""

    priority = forms.IntegerField(
        required=False, min_value=-32768, max_value=32767, help_text="Lower numbers run first"
    )
    queue = forms.CharField(required=False, max_length=100, validators=[RegexValidator(r"\A[^\x00\ud800-\udfff]*\Z")])

    def clean(self) -> dict[str, Any]:
        """Refuse a form that changes nothing."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and cleaned.get("priority") is None and not cleaned.get("queue"):
            raise forms.ValidationError("Give a priority, a queue or both.")
        return cleaned

    def describe(self, arguments: dict[str, Any]) -> str:
        return " and ".join(f"given {name} {value}" for name, value in arguments.items())


class PauseForm(ActionForm):
    """Form for what to pause or resume. A scope is written ``kind:name``."""

    verb = forms.ChoiceField(
        label="Action", choices=[("paused", "Pause"), ("resumed", "Resume")], widget=forms.RadioSelect, initial="paused"
    )
    scopes = forms.MultipleChoiceField(label="Apply to", widget=forms.CheckboxSelectMultiple)

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        scopes: Sequence[tuple[Limit.Kind, str]] = (),
        paused: Container[tuple[str, str]] = (),
    ) -> None:
        super().__init__(data)
        if scopes and all(scope in paused for scope in scopes):
            self.fields["verb"].initial = "resumed"
        field: Any = self.fields["scopes"]
        field.choices = [
            (f"{kind}:{name}", _capitalized(kind, name) + (" (paused now)" if (kind, name) in paused else ""))
            for kind, name in scopes
        ]


def _capitalized(kind: str, name: str) -> str:
    named = scope_name(kind, name)
    return named[:1].upper() + named[1:]


class PauseAction(Action):
    """Action that pauses or resumes queues, tasks and stores of the selected jobs."""

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Job]) -> PauseForm:
        """Return the form with the queues, tasks and stores of the newest thousand selected jobs."""
        kinds = (Limit.Kind.QUEUE, Limit.Kind.TASK, Limit.Kind.STORE)
        rows = queryset.order_by("-pk").values_list("queue", "task", "store_id")[:BATCH]
        columns = zip(*rows, strict=True)
        scopes = [
            (kind, name)
            for kind, column in zip(kinds, columns, strict=False)  # no columns without rows
            for name in sorted({str(value) for value in column if value is not None})[:50]
        ]
        paused = Limit.objects.using(reader(request)).filter(paused=True).values_list("kind", "name")
        return PauseForm(data, scopes=scopes, paused=set(paused))

    def run(self, request: HttpRequest, queryset: QuerySet[Job], form: ActionForm) -> None:
        """Pause or resume all jobs of the chosen queues, tasks and stores, not only the selected ones."""
        using, done = reader(request), form.cleaned_data["verb"]
        for scope in form.cleaned_data["scopes"]:
            kind, _, name = scope.partition(":")
            paused = done == "paused"
            if set_paused(Limit.Kind(kind), name, paused=paused, by=user_name(request), using=using):
                log_changed(request, list(Limit.objects.using(using).filter(kind=kind, name=name)), done)
                messages.success(request, f"{_capitalized(kind, name)} {done}.")
            else:
                state = "is paused already" if paused else "is not paused"
                messages.warning(request, f"{_capitalized(kind, name)} {state}.")


RETRY: Final = RowAction(
    "retry",
    "Retry selected jobs",
    ("retry_job",),
    retry_jobs,
    "retried",
    question="Failed and cancelled jobs in this selection will be queued again, with at least one more attempt.",
    effects=dict.fromkeys(("failed", "cancelled"), "queued again, with at least one more attempt"),
    form=RetryForm,
    for_stores=True,
    offered_in=("failed", "cancelled"),
    in_rows=True,
)
_CANCEL: Final = RowAction(
    "cancel",
    "Cancel selected jobs",
    ("cancel_job",),
    cancel_jobs,
    "cancelled",
    question="Queued and failed jobs are cancelled now; running ones when their handler stops.",
    effects={"queued": "cancelled now", "failed": "cancelled now", "running": "cancelled when the handler stops"},
    for_stores=True,
    offered_in=("queued", "running"),
    in_rows=True,
)
_DISCARD: Final = RowAction(
    "discard",
    "Discard selected jobs",
    ("discard_job",),
    discard_jobs,
    "discarded",
    question="Discards the queued and failed jobs selected. They will not run again unless someone retries them.",
    effects=dict.fromkeys(("queued", "failed"), "discarded, to run again only after a retry"),
    for_stores=True,
    offered_in=("queued", "failed"),
)
_CHANGE: Final = RowAction(
    "change",
    "Change priority or queue of selected jobs",
    ("change_job",),
    change_jobs,
    "changed",
    question="Queued jobs in this selection will be changed.",
    effects={"queued": "changed as given here"},
    form=ChangeForm,
    for_stores=True,
    offered_in=("queued",),
)


def _named_scopes(sentence: str) -> str:
    return sentence.format("queue, task or store" if conf.store_model else "queue or task")


_scopes: Final[Any] = lazy(_named_scopes, str)
_PAUSE: Final = PauseAction(
    "pause",
    _scopes("Pause or resume {} of selected jobs"),
    ("add_limit", "change_limit"),
    question=_scopes("This pauses or resumes every job of the {} you choose, not only the selected ones."),
)
JOB_ACTIONS: Final = (RETRY, _CANCEL, _DISCARD, _CHANGE, _PAUSE)
