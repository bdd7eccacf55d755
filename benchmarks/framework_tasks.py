"""Declares tasks of Django's framework, which salon_jobs runs here; the worker finds them by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def noop() -> None:
    """Do nothing."""


@task
def echo(number: int) -> int:
    """Return what it was given."""
    return number
