"""Actions on jobs that need a form of their own: pausing what they belong to, and running one again."""

from __future__ import annotations

import inspect
import json
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Final, cast

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext

from salon_jobs.admin.actions import BATCH, Action, ActionForm, actions_of, log_changed, user_name
from salon_jobs.admin.base import reader
from salon_jobs.admin.cells import scope_name
from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import storable
from salon_jobs.core.errors import OptionInvalid, SalonJobsError, UnknownTask
from salon_jobs.core.redaction import HIDDEN, redacted, unredacted
from salon_jobs.jobs import registry
from salon_jobs.jobs.control import job_like, run_again
from salon_jobs.models import Job, Limit
from salon_jobs.tenancy.context import tenant_context
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


class ArgumentsForm(ActionForm):
    """Form of a job's arguments, as JSON in which what ``REDACT`` hides stays hidden."""

    def __init__(self, verb: Verb, data: Mapping[str, Any] | None, job: Job) -> None:
        super().__init__(verb, data)
        self.job, field = job, self.fields["arguments"]
        kept: object = job.payload
        self._stored = cast("dict[str, Any]", kept if isinstance(kept, dict) else {})
        try:
            declared = registry.get_declaration(job.task)
            self._stored = declared.payload.named(self._stored)
            field.help_text = f"{job.task}{inspect.signature(declared.function)}".replace("'", "")
        except UnknownTask:
            pass  # the page says so instead of showing the form
        shown = redacted(self._stored, conf.redact)
        self.hides = shown != self._stored
        field.initial = storable(json.dumps(shown, indent=2, ensure_ascii=False))
        field.widget.attrs["rows"] = min(max(field.initial.count("\n") + 3, 6), 30)

    def clean_arguments(self) -> dict[str, Any]:
        """Read the arguments, and check them by the task's types."""
        try:
            given: Any = json.loads(self.cleaned_data["arguments"])
            if not isinstance(given, dict):
                raise forms.ValidationError(gettext("Write the arguments by name, as a JSON object: {…}"))
            arguments: dict[str, Any] = unredacted(given, self._stored, conf.redact)
            job_like(self.job, arguments)
        except (SalonJobsError, ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from None
        return arguments


class RunAgain(Action):
    """Action that enqueues a job like the one on whose page it is, with other arguments."""

    of_one: ClassVar[bool] = True

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Job]) -> ArgumentsForm:
        """Return the form with the job's arguments. Raises OptionInvalid for several jobs."""
        if len(jobs := list(queryset[:2])) != 1:
            raise OptionInvalid(gettext("Choose a single job to run again"))
        return ArgumentsForm(self.verb, data, jobs[0])

    def preview(self, request: HttpRequest, queryset: QuerySet[Job], form: Any) -> tuple[list[str], bool]:
        """Return what becomes of the job, and of values that are hidden."""
        try:
            registry.get_declaration(form.job.task)
        except UnknownTask as error:
            return [f"{error}."], False
        lines = [gettext("This enqueues a new job with these arguments. Job %s stays as it is.") % form.job.pk]
        if form.hides:
            said = gettext("%s stands for a value that is hidden: left as it is, the new job gets that value.")
            lines.append(said % HIDDEN)
        return lines, True

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Job], form: Any) -> None:
        """Enqueue the job as its store, log it for both, and link to it."""
        job: Job = form.job
        try:
            with nullcontext() if job.store_id is None else tenant_context(job.store_id):
                handle = run_again(job, form.cleaned_data["arguments"])
        except SalonJobsError as error:
            messages.warning(request, f"Job {job.pk} was not run again: {error}.")
            return
        log_changed(request, [job], f"run again with other arguments, as job {handle.id}")
        new = Job(pk=handle.id, task=job.task)
        log_changed(request, [new], f"enqueued with other arguments than job {job.pk}")
        messages.success(request, format_html("{} {}", model_admin.link(Job, new.pk, new), gettext("enqueued.")))


JOB_ACTIONS: Final = {action.name: action for action in actions_of(Job, pause=PauseAction, run_again=RunAgain)}
