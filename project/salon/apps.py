"""Configures the demo app."""

from __future__ import annotations

from django.apps import AppConfig


class SalonConfig(AppConfig):
    """Carries the label ``salon``; its tasks and crontab are discovered by salon_jobs."""

    name = "project.salon"
    label = "salon"
    default_auto_field = "django.db.models.BigAutoField"
