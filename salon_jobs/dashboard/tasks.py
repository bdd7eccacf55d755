"""The tasks that this process declares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from salon_jobs.conf import settings as conf
from salon_jobs.jobs import registry


@dataclass(frozen=True, slots=True)
class DeclaredTask:
    """One task, with its most requested options; ``declared`` is the dotted path of its function."""

    task: str
    declared: str
    is_store_task: bool
    is_async: bool
    queue: str
    priority: int
    max_attempts: int
    timeout_s: float | None
    keep_result_s: float | None
    at_most_once: bool


def declared_tasks() -> list[DeclaredTask]:
    """Return the tasks of all installed apps, by name. Reads no database."""
    return [
        DeclaredTask(
            task=each.name,
            declared=each.origin,
            is_store_task=each.is_store_task,
            is_async=each.is_async,
            queue=each.options.queue,
            priority=each.options.priority,
            max_attempts=each.options.max_attempts or (1 if each.at_most_once else conf.max_attempts),
            timeout_s=None if each.timeouts is None else _seconds(each.timeouts.timeout),
            keep_result_s=_seconds(each.options.keep_result),
            at_most_once=each.at_most_once,
        )
        for each in sorted(registry.tasks(), key=lambda declared: declared.name)
    ]


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
