"""Declares tasks that can not work; each is refused when it is declared, not when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import store_task, task
from salon_jobs.core.errors import OptionInvalid, TaskInvalid
from salon_jobs.jobs import registry

NAME = "test-declared-here"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    registry.unregister(NAME)


async def _async() -> None: ...


def _args(*args: int) -> None: ...


def _kwargs(**kwargs: int) -> None: ...


def _bare(number) -> None:  # type: ignore[no-untyped-def]
    ...


def _positional(number: int, /) -> None: ...


def _with_store(store_id: UUID) -> None: ...


def _store_as_text(store_id: str) -> None: ...


def _fine() -> None: ...


@pytest.mark.parametrize(
    ("declare", "function", "message"),
    [
        (task, _async, "async"),
        (task, _args, "'args' must be an ordinary named one"),
        (task, _kwargs, "'kwargs' must be an ordinary named one"),
        (task, _bare, "'number' needs a type annotation"),
        (task, _positional, "must be an ordinary named one"),
        (task, _with_store, "declare it with store_task"),
        (store_task, _fine, "needs the parameter store_id: UUID"),
        (store_task, _store_as_text, "annotated as UUID"),
    ],
)
def test_a_signature_that_can_not_be_a_payload(
    declare: Callable[..., Any], function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(TaskInvalid, match=message) as caught:
        declare(name=NAME)(function)
    assert NAME in str(caught.value)


@pytest.mark.parametrize("name", ["", "Has-Capitals", "under_score", "-dash", "dash-", "two--dashes", "a b", "x" * 256])
def test_names_are_kebab_case(name: str) -> None:
    with pytest.raises(TaskInvalid, match="kebab-case"):
        task(name=name)(_fine)


def test_a_name_belongs_to_one_function() -> None:
    task(name=NAME)(_fine)
    task(name=NAME)(_fine)
    with pytest.raises(TaskInvalid, match=f"two tasks are named '{NAME}'"):
        store_task(name=NAME)(_with_store)


def test_a_key_uses_arguments_alone() -> None:
    with pytest.raises(TaskInvalid, match=r"job_key uses \['day'\]"):
        store_task(name=NAME, job_key="k:{store_id}:{day}")(_with_store)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"priority": 40000}, "priority"),
        ({"queue": "x" * 101}, "queue"),
        ({"job_key_mode": "always"}, "job_key_mode must be one of replace, preserve_run_at, unsafe_dedupe"),
    ],
)
def test_options_name_the_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        task(name=NAME, **options)


def test_a_declared_task_is_still_the_function_it_was() -> None:
    @task(name=NAME)
    def double(number: int = 2) -> int:
        """Double it."""
        return number * 2

    assert double(4) == 8
    assert double.__doc__ == "Double it."
    assert double.__name__ == "double"
    assert repr(double) == f"<Task {NAME}>"
    assert registry.get_task(NAME) is double
