"""Backend for Django's tasks in tests: their jobs run before ``enqueue`` returns.

TASKS = {"default": {"BACKEND": "salon_jobs.testing.backend.AtOnceBackend"}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ParamSpec, TypeVar

from salon_jobs.backend import SalonJobsBackend
from salon_jobs.backend.framework import Task, TaskResult
from salon_jobs.jobs import enqueue
from salon_jobs.testing.at_once import run_at_once

P = ParamSpec("P")
R = TypeVar("R")


class AtOnceBackend(SalonJobsBackend):
    """Backend that runs due jobs in ``enqueue``, on the caller's connection, and returns the result of this one.

    As with Django's own ImmediateBackend, a task that fails raises nothing: the result has its errors.
    """

    def enqueue(self, task: Task[P, R], args: Sequence[object], kwargs: Mapping[str, object]) -> TaskResult[P, R]:
        """Enqueue one job, run due jobs, and read the result. Raises like the backend for production."""
        if enqueue.at_once:  # a block of the test defines how
            return super().enqueue(task, args, kwargs)
        with run_at_once(raise_errors=False):
            return super().enqueue(task, args, kwargs)
