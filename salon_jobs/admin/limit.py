"""Lets operators pause and limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from salon_jobs.admin.base import ReaderAdmin, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs.limits import rule_name
from salon_jobs.models import Limit

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Limit]
else:
    ModelForm = forms.ModelForm  # generic for type checkers alone


class LimitForm(ModelForm):
    """Validates one rule, against the database as the operator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django validates constraints where the instance is from; a new one is from nowhere, hence from the web role's.
        self.instance._state.db = conf.reader_database

    def clean(self) -> dict[str, Any]:
        """Refuse a name that names nothing; write a store's id as the database does."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        kind, name = cleaned.get("kind"), cleaned.get("name")
        if kind and name:
            try:
                cleaned["name"] = rule_name(Limit.Kind(kind), name)
            except OptionInvalid as error:
                self.add_error("name", str(error))
        return cleaned


@admin.register(Limit)
class LimitAdmin(ReaderAdmin):
    """Edits the rules through the operator's database role; workers follow within a second."""

    list_display = ("kind", "name", "paused", "max_concurrency", "rate")
    list_filter = ("kind", "paused")
    search_fields = ("name",)
    form = LimitForm
    fields = ("kind", "name", "paused", "max_concurrency", "rate")
    ordering = ("kind", "name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse whoever is limited to a store: a rule can hold back all of them."""
        return sees_all_stores(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse whoever is limited to a store."""
        return sees_all_stores(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Refuse whoever is limited to a store."""
        return sees_all_stores(request) and super().has_delete_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        """Save as the operator."""
        obj.save(using=conf.reader_database)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        """Delete as the operator."""
        obj.delete(using=conf.reader_database)
