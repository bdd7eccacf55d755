"""Admin pages where operators pause and limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.db import models
from django.http import HttpRequest

from salon_jobs.admin.base import ReaderAdmin, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs.limits import limit_name
from salon_jobs.models import Limit

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Limit]
else:
    ModelForm = forms.ModelForm  # generic only for type checkers


class LimitForm(ModelForm):
    """Form for one limit, validated against the database as the operator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django validates constraints on the instance's database; a new one has none, hence the web role's.
        self.instance._state.db = conf.reader_database

    def clean(self) -> dict[str, Any]:
        """Refuse a name that matches nothing; normalize a store's id to the database's spelling."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        kind, name = cleaned.get("kind"), cleaned.get("name")
        if kind and name:
            try:
                cleaned["name"] = limit_name(Limit.Kind(kind), name)
            except OptionInvalid as error:
                self.add_error("name", str(error))
        return cleaned


class LimitAdmin(ReaderAdmin):
    """Admin of limits, edited through the operator's database role; workers apply them within a second."""

    list_display = ("kind", "name", "paused", "max_concurrency", "rate")
    list_filter = ("kind", "paused")
    search_fields = ("name",)
    form = LimitForm
    fields = ("kind", "name", "paused", "max_concurrency", "rate")
    ordering = ("kind", "name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse users who are limited to a store: a limit can affect all stores."""
        return sees_all_stores(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse users who are limited to a store."""
        return sees_all_stores(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse users who are limited to a store."""
        return sees_all_stores(request) and super().has_delete_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        """Save as the operator."""
        obj.save(using=conf.reader_database)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        """Delete as the operator."""
        obj.delete(using=conf.reader_database)
