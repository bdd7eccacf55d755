"""What a project imports of Django's tasks, from Django or from the backport.

Untyped, because the stubs know only Django's own options of a task, not those of a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, overload

import django

PACKAGE: Final = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
# The name of the logger, too.
LOGGER: Final = PACKAGE

_tasks: Any = import_module(PACKAGE)
signals: Any = import_module(f"{PACKAGE}.signals")
_exceptions: Any = import_module(f"{PACKAGE}.exceptions")


class Declared(Protocol):
    """Task whose options are not type-checked."""

    def __getattr__(self, name: str, /) -> Any: ...


@overload
def task(function: Callable[..., Any], /) -> Declared: ...
@overload
def task(**options: Any) -> Callable[[Callable[..., Any]], Declared]: ...
def task(*functions: Any, **options: Any) -> Any:
    """Declare a task, as Django does."""
    return _tasks.task(*functions, **options)


task_backends: Final = _tasks.task_backends
default_task_backend: Final = _tasks.default_task_backend
task_enqueued: Final = signals.task_enqueued
task_started: Final = signals.task_started
task_finished: Final = signals.task_finished
TaskResultMismatch: Final = _exceptions.TaskResultMismatch
