"""Registry of declared tasks by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from salon_jobs.core.errors import TaskInvalid, UnknownTask

if TYPE_CHECKING:
    from salon_jobs.jobs.task import Task


_tasks: dict[str, Task[..., Any]] = {}


def register(task: Task[..., Any]) -> None:
    """Register a task. Raises TaskInvalid when another function has its name."""
    known = _tasks.get(task.name)
    if known is not None and _origin(known) != _origin(task):
        raise TaskInvalid(f"two tasks are named {task.name!r}: {_origin(known)} and {_origin(task)}")
    _tasks[task.name] = task


def unregister(name: str) -> None:
    """Remove a task; for tests that declare their own."""
    _tasks.pop(name, None)


def get_task(name: str) -> Task[..., Any]:
    """Return the task with this name. Raises UnknownTask suggesting the closest registered name."""
    try:
        return _tasks[name]
    except KeyError:
        close = difflib.get_close_matches(name, _tasks, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UnknownTask(f"no task is named {name!r}{hint}") from None


def tasks() -> list[Task[..., Any]]:
    """Return the registered tasks."""
    return list(_tasks.values())


def task_names() -> list[str]:
    """Return the registered task names, sorted."""
    return sorted(_tasks)


def queue_names() -> set[str]:
    """Return the queues of the registered tasks; ``using`` can name others."""
    return {task.options.queue for task in _tasks.values()}


def _origin(task: Task[..., Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"
