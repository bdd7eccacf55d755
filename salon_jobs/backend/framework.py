"""Django's task framework: ``django.tasks`` since Django 6.0, or its backport ``django_tasks`` on 5.2.

Nothing else imports either of them, so the rest of the backend is the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import django
from django.core.exceptions import ImproperlyConfigured

__all__ = [
    "LOGGER",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    LOGGER = "django.tasks"
else:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task, task_backends
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ImproperlyConfigured(
            "SalonJobsBackend needs Django 6.0 or newer; on this version it needs the backport of django.tasks: "
            "pip install 'salon-jobs[django-tasks]'"
        ) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    LOGGER = "django_tasks"
