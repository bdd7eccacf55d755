"""Shows that the backend's own decorator takes its options on every version of Django."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.backend import task
from salon_jobs.backend.framework import InvalidTask
from salon_jobs.testing import drain_jobs
from tests.backend.django_tasks_api import PACKAGE
from tests.backend.django_tasks_api import task as django_task


@task
def plain(number: int) -> int:
    """Return the number."""
    return number


@task(takes_context=True, max_attempts=3, timeout=timedelta(minutes=1), queue_name="mail", priority=3, job_key="k")
def with_options(context: Any, number: int) -> int:
    """Return the attempt."""
    return int(context.attempt) + number


def test_task_is_what_djangos_decorator_makes() -> None:
    own: object = django_task(len_of)
    assert isinstance(own, type(plain))


def len_of(text: str) -> int:
    """Return the length."""
    return len(text)


@pytest.mark.parametrize(
    ("name", "message"), [("delay", "; use enqueue("), ("adelay", "; use aenqueue("), ("missing", "")]
)
def test_methods_of_other_libraries_name_ours(name: str, message: str) -> None:
    message = f"'{type(plain).__name__}' object has no attribute '{name}'{message}"
    with pytest.raises(AttributeError, match=re.escape(message) + ("" if "use" in message else "$")):
        getattr(plain, name)


@pytest.mark.usefixtures("database")
def test_options_reach_the_worker() -> None:
    first, second = plain.enqueue(1), with_options.enqueue(number=2)
    assert (with_options.queue_name, with_options.priority) == ("mail", 3)
    drain_jobs()
    first.refresh()
    second.refresh()
    assert (first.return_value, second.return_value) == (1, 3)
    assert with_options.using(max_attempts=4).enqueue(number=1).id


def test_unknown_options() -> None:
    wrong: Any = {"max_atempts": 3}
    message = "a task has no option 'max_atempts'; did you mean 'max_attempts'?"
    for call in (task, plain.using):
        with pytest.raises(TypeError, match=re.escape(message)):
            call(**wrong)
    of_others: Any = {"countdown": 3}
    with pytest.raises(TypeError, match="a task has no option 'countdown'; use run_after="):
        plain.using(**of_others)


def test_options_of_another_backend(settings: Any) -> None:
    settings.TASKS = {**settings.TASKS, "dummy": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}
    with pytest.raises(
        InvalidTask, match=r"max_attempts are options of SalonJobsBackend, but TASKS\['dummy'\] is another"
    ):
        task(backend="dummy", max_attempts=3)(len_of)
