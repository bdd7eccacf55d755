"""Django's task framework: ``django.tasks`` since Django 6.0, or its backport ``django_tasks`` on 5.2.

Nothing else imports either of them, so the rest of the backend is the same for both.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, cast

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
    "unheard_receivers",
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


def unheard_receivers() -> list[str]:
    """Return the receivers of the backport's signals that are never called, since Django has its own signals.

    By their dotted paths; without those of the backport itself.
    """
    backport: Any = sys.modules.get("django_tasks.signals")
    if backport is None or backport.task_finished is task_finished:
        return []
    names: set[str] = set()
    for signal in (backport.task_enqueued, backport.task_started, backport.task_finished):
        for _, receiver, *_ in signal.receivers:
            function: Any = cast("Any", receiver)() if isinstance(receiver, weakref.ref) else receiver
            module = getattr(function, "__module__", type(function).__module__)
            if function is not None and not f"{module}.".startswith("django_tasks."):
                names.add(f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}")
    return sorted(names)
