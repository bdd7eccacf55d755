"""Actions on jobs, one of which pauses or resumes what they belong to."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.admin.actions import BATCH, Action, ActionForm, actions_of, log_changed, user_name
from salon_jobs.admin.base import reader
from salon_jobs.admin.cells import scope_name
from salon_jobs.models import Job, Limit
from salon_jobs.verbs import Verb, verbs_of


class PauseForm(ActionForm):
    """Form for what to pause or resume. A scope is written ``kind:name``."""

    verb = forms.ChoiceField(
        label="Action", choices=[("paused", "Pause"), ("resumed", "Resume")], widget=forms.RadioSelect, initial="paused"
    )
    scopes = forms.MultipleChoiceField(label="Apply to", widget=forms.CheckboxSelectMultiple)

    def __init__(
        self,
        verb: Verb,
        data: Mapping[str, Any] | None,
        *,
        scopes: Sequence[tuple[Limit.Kind, str]],
        paused: Container[tuple[str, str]],
    ) -> None:
        super().__init__(verb, data)
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
        return PauseForm(self.verb, data, scopes=scopes, paused=set(paused))

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Job], form: ActionForm) -> None:
        """Pause or resume all jobs of the chosen queues, tasks and stores, not only the selected ones."""
        using, done, scopes = reader(request), form.cleaned_data["verb"], form.cleaned_data["scopes"]
        [verb] = [verb for verb in verbs_of(Limit).values() if verb.done == done]
        for result in verb.apply(scopes, by=user_name(request), using=using):
            kind, _, name = result.id.partition(":")
            if result.changed:
                log_changed(request, list(Limit.objects.using(using).filter(kind=kind, name=name)), done)
                messages.success(request, f"{_capitalized(kind, name)} {done}.")
            else:
                messages.warning(request, f"{_capitalized(kind, name)} {result.detail.removeprefix('it ')}.")


JOB_ACTIONS: Final = {action.name: action for action in actions_of(Job, pause=PauseAction)}
