"""Asks what an action on jobs needs to know."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.utils import timezone

from salon_jobs.models import Limit


class RetryForm(forms.Form):
    """Asks when."""

    at = forms.DateTimeField(
        label="Due at", required=False, widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["at"].help_text = f"Empty: now. Time zone: {timezone.get_current_timezone_name()}"


class ChangeForm(forms.Form):
    """Asks for another priority, queue or both."""

    priority = forms.IntegerField(required=False, min_value=-32768, max_value=32767, help_text="Smaller first")
    queue = forms.CharField(required=False, max_length=100, validators=[RegexValidator(r"\A[^\x00\ud800-\udfff]*\Z")])

    def clean(self) -> dict[str, Any]:
        """Refuse to change nothing."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and cleaned.get("priority") is None and not cleaned.get("queue"):
            raise forms.ValidationError("Give a priority, a queue or both.")
        return cleaned


class PauseForm(forms.Form):
    """Asks what to pause or to resume. A scope is written kind:name."""

    verb = forms.ChoiceField(
        label="What to do", choices=[("paused", "Pause"), ("resumed", "Resume")], widget=forms.RadioSelect,
        initial="paused",
    )  # fmt: skip
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
