"""App configuration."""

from __future__ import annotations

from django.apps import AppConfig


class SalonConfig(AppConfig):
    """Salon app; salon_jobs discovers its tasks and crontab."""

    name = "project.salon"
    label = "salon"
    default_auto_field = "django.db.models.BigAutoField"
