"""Declares tasks that cannot work; each is refused when it is declared, not when it runs."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from project.salon.models import Store
from salon_jobs import store_task, task
from salon_jobs.core.errors import OptionInvalid, PayloadInvalid, TaskInvalid, TimedOut
from salon_jobs.core.outcomes import Cancelled, Errored
from salon_jobs.jobs import registry
from salon_jobs.jobs.options import ErrorRules, Timeouts
from salon_jobs.jobs.payload import Arguments
from salon_jobs.jobs.task import get_task
from tests.interpreter import run_python
from tests.support import store_id_of

NAME = "test-declared-here"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    registry.unregister(NAME)


async def _async() -> None: ...


def _with_store(store_id: UUID) -> None: ...


def _fine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


def _with_model(store: Store) -> None: ...


def _with_models(stores: dict[str, list[Store | None]]) -> None: ...


def _missing_attribute(day: datetime.nowhere) -> None: ...  # type: ignore[name-defined]  # pyright: ignore


@pytest.mark.parametrize(
    ("declare", "function", "message"),
    [
        (store_task, _async, "declare it with atomic=False"),
        (task, _with_store, "declare it with store_task"),
        (task, _generator, "remove the yield"),
        (task, _async_generator, "remove the yield"),
        (task, partial(_with_store, store_id=store_id_of(0)), "only a function declared with def"),
        (task, dict, "only a function declared with def"),
        (task, "a string", "only a function declared with def"),
        (task, _with_model, "cannot be a payload: Store; pass what identifies it, such as its ID"),
        (task, _with_models, "cannot be a payload: Store"),
        (task, _missing_attribute, "an annotation cannot be evaluated"),
    ],
)
def test_bad_signature_is_refused(declare: Callable[..., Any], function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TaskInvalid, match=message) as caught:
        declare(name=NAME)(function)
    assert NAME in str(caught.value)


@dataclass
class _Sale:
    number: int
    note: str = ""
    tags: list[str] = field(default_factory=list)


class _Sold(msgspec.Struct):
    number: int


@dataclass
class _SaleOfStore:
    store_id: UUID


@dataclass
class _SaleWithModel:
    store: Store


def _chunk(store_id: UUID, sales: list[_Sale]) -> None: ...


def _chunk_of_structs(sales: list[_Sold], store_id: UUID) -> None: ...


def _no_list(store_id: UUID, sale: _Sale) -> None: ...


def _list_of_numbers(store_id: UUID, numbers: list[int]) -> None: ...


def _two_lists(store_id: UUID, sales: list[_Sale], more: list[_Sale]) -> None: ...


def _chunk_without_store(sales: list[_Sale]) -> None: ...


def _chunk_with_two_stores(store_id: UUID, sales: list[_SaleOfStore]) -> None: ...


def _chunk_with_model(store_id: UUID, sales: list[_SaleWithModel]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_fine, "needs a parameter for the store: store_id"),
        (_chunk_without_store, "needs a parameter for the store: store_id"),
        (_no_list, r"has chunk: its handler takes the store and a list of payloads, .* jobs: list\[Sale\]"),
        (_list_of_numbers, "a list of payloads"),
        (_two_lists, "a list of payloads"),
        (_chunk_with_two_stores, "_SaleOfStore needs no store_id; the handler gets it separately"),
        (_chunk_with_model, "cannot be a payload: Store"),
    ],
)
def test_chunk_is_a_list_of_payloads(function: Any, message: str) -> None:
    with pytest.raises(TaskInvalid, match=message) as caught:
        store_task(name=NAME, chunk=5)(function)
    assert NAME in str(caught.value)


NO_TEMPLATE = "job_key must be a string of 1 to 512 characters"
TEMPLATES: list[tuple[dict[str, Any], str]] = [
    ({"job_key": "k:{store_id}:{day}"}, r"job_key uses \['day'\], which are not arguments"),
    ({"job_key": "k:{}"}, r"job_key uses \[''\]"),
    ({"job_key": "k:{store_id.hex}"}, r"job_key uses \['store_id.hex'\]"),
    ({"job_key": "k:{store_id"}, "the job_key template is wrong: expected '}'"),
    ({"job_key": "k:}"}, "the job_key template is wrong: Single '}'"),
    ({"job_key": "k:{store_id:.8}"}, "job_key takes plain arguments"),
    ({"job_key": "k:{store_id!r}"}, "job_key takes plain arguments"),
    *[({"job_key": template}, NO_TEMPLATE) for template in ("", "k\0", 5)],
    ({"concurrency_key": "k:{store_id:.8}"}, "concurrency_key takes plain arguments"),
    ({"concurrency_key": "x" * 256}, "concurrency_key must be a string of 1 to 255 characters"),
]
EXCEPTIONS = "must be a tuple of exception classes"
OPTIONS: list[tuple[dict[str, Any], str]] = [
    *TEMPLATES,
    *[({"chunk": chunk}, "chunk must be a whole number from 1 to 1000") for chunk in (0, 1001, True, "5")],
    ({"chunk": 5, "atomic": False}, "chunk needs atomic=True"),
    ({"backoff": 5}, "backoff must be a salon_jobs.Backoff, not 5"),
    ({"retry_on": OSError}, f"retry_on {EXCEPTIONS}, not <class 'OSError'>"),
    ({"retry_on": ("OSError",)}, rf"retry_on {EXCEPTIONS}, not \('OSError',\)"),
    ({"discard_on": (int,)}, f"discard_on {EXCEPTIONS}"),
    ({"discard_on": (OSError(),)}, f"discard_on {EXCEPTIONS}"),
    ({"fail_on": [OSError]}, f"fail_on {EXCEPTIONS}"),
    ({"fail_on": (LookupError,), "discard_on": (KeyError,)}, "fail_on has LookupError and discard_on has KeyError"),
    ({"retry_on": (Exception,), "fail_on": (KeyError,)}, "retry_on has Exception and fail_on has KeyError"),
    ({"at_most_once": True, "fail_on": (KeyError,)}, "at_most_once does not go with fail_on"),
    ({"retry_on": (Exception,), "discard_on": (KeyError,)}, "retry_on has Exception and discard_on has"),
    ({"retry_on": (KeyError,), "discard_on": (LookupError,)}, "retry_on has KeyError and discard_on has"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"priority": 40000}, "priority"),
    ({"queue": "x" * 101}, "queue"),
    ({"queue": "caf\udce9"}, "queue must be .* without NUL or lone surrogates"),
    ({"job_key_mode": "always"}, "job_key_mode must be one of replace, preserve_run_at, unsafe_dedupe"),
    ({"max_concurrency": 0}, "max_concurrency must be a whole number from 1"),
    ({"max_concurrency": True}, "max_concurrency must be a whole number"),
    ({"rate": "fast"}, 'rate must be a number of jobs per second above 0, or text such as "100/m"'),
    ({"key_rate": 5}, "key_rate limits the jobs with the same concurrency_key: pass that too"),
    ({"key_rate": 0, "concurrency_key": "k"}, "key_rate must be a number of jobs per second above 0"),
    ({"burst": 5}, "burst is how many starts a rate saves up: pass rate or key_rate too"),
    ({"rate": 5, "burst": 0}, "burst must be"),
    ({"concurrency_key": "k", "key_concurrency": 0}, "key_concurrency must be a whole number from 1"),
    ({"key_concurrency": 2}, "key_concurrency limits the jobs with the same concurrency_key: pass that too"),
    ({"ordered": "yes", "concurrency_key": "k"}, "ordered must be True, False or 'skip_failed', not 'yes'"),
    ({"ordered": True}, "ordered is about the jobs with the same concurrency_key: pass that too"),
    ({"ordered": True, "concurrency_key": "k", "key_concurrency": 1}, "one by one: leave key_concurrency out"),
    ({"bind": 1}, r"no option 'bind'; use current_job\(\) in the handler"),
    ({"acks_late": True}, "no option 'acks_late'; use at_most_once=True instead of acks_late=False"),
    ({"link_error": 1}, "no option 'link_error'; use a flow: f.add"),
    ({"retries": 1}, "no option 'retries'; use max_attempts=…, which counts the first run too"),
    ({"retry_kwargs": {}}, r"no option 'retry_kwargs'; use max_attempts=…, .* and backoff=Backoff\(…\)"),
    ({"reject_on_worker_lost": True}, "use nothing instead of reject_on_worker_lost=True, and at_most_once=True"),
    ({"routing_key": "mail"}, "no option 'routing_key'; use queue='…'"),
    ({"countdown": 1}, r"no option 'countdown'; use using\(run_in=timedelta\(…\)\)"),
    ({"key_concurency": 1}, r"no option 'key_concurency'; did you mean 'key_concurrency'\?"),
    ({"run_at": 1}, r"no option 'run_at' of a task; give it to each enqueue: using\(run_at=…\)"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    declare: Any = store_task
    with pytest.raises((OptionInvalid, TaskInvalid), match=message) as caught:
        declare(name=NAME, **options)(_with_store)
    assert "job_key" not in options or NAME in str(caught.value)


def test_system_task_is_not_atomic() -> None:
    options: dict[str, Any] = {"atomic": False}
    with pytest.raises(OptionInvalid, match=r"no option 'atomic' of a system task, .*; use store_task"):
        task(name=NAME, **options)


@pytest.mark.parametrize("name", [5, "", "-dash", ".dot", "a b", "a/b", "a\n", "café", "x" * 256])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(TaskInvalid, match=r"cannot be a task's name: .*; give _fine another one with name='…'"):
        task(name=name)(_fine)


@pytest.mark.parametrize("name", ["0", "salon.send_receipt", "Has-Capitals", "dash-", "x" * 255])
def test_good_names_are_taken(name: str) -> None:
    assert task(name=name)(_fine).name == name
    registry.unregister(name)


def test_arguments_of_chunk_are_payload_fields() -> None:
    store = store_id_of(5)
    declared = store_task(name=NAME, chunk=5, job_key="{store_id}:{number}")(_chunk)
    payload = declared.payload
    expected = Arguments(store, '{"note":"","number":1,"tags":[]}')
    assert payload.bind((store, _Sale(1)), {}) == expected
    assert payload.bind((), {"store_id": str(store), "number": 1}) == expected
    assert declared.keys_for(store, expected, declared.options) == {"job_key": f"{store}:1"}
    assert payload.decode(expected.json, store) == {"store_id": store, "sales": [_Sale(1)]}
    for args, kwargs in (((store,), {}), ((store, {"number": 1}), {}), ((store, _Sale(1)), {"note": "x"})):
        with pytest.raises(PayloadInvalid, match=r"takes the store and one _Sale: enqueue\(store_id, _Sale\(…\)\)"):
            payload.bind(args, kwargs)
    with pytest.raises(PayloadInvalid, match="Expected `int`"):
        payload.bind((store, _Sale("x")), {})  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match="no argument 'nummer'; did you mean"):
        payload.bind((), {"store_id": store, "nummer": 1})


@dataclass
class _Payment:
    number: int
    key: UUID = field(default_factory=uuid4)


class _PaymentStruct(msgspec.Struct):
    number: int
    key: UUID = msgspec.field(default_factory=uuid4)


def _pay(store_id: UUID, payments: list[_Payment]) -> None: ...


def _pay_by_struct(store_id: UUID, payments: list[_PaymentStruct]) -> None: ...


@pytest.mark.parametrize("function", [_pay, _pay_by_struct])
def test_each_job_of_chunk_gets_own_default(function: Any) -> None:
    store, payload = store_id_of(5), store_task(name=NAME, chunk=5)(function).payload
    calls = [payload.bind((), {"store_id": store, "number": 1}).json for _ in range(3)]
    assert len(set(calls)) == 3
    before_the_field = [payload.decode('{"number": 1}', store)["payments"][0].key for _ in range(3)]
    assert len(set(before_the_field)) == 3


def test_chunk_can_be_of_structs() -> None:
    declare: Any = store_task(name=NAME, chunk=5)
    arguments = declare(_chunk_of_structs).payload.decode('{"number": 1}', store_id_of(1))
    assert arguments == {"store_id": store_id_of(1), "sales": [_Sold(1)]}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("project.salon.nowhere.tasks", "salon.remind"),  # an app's, however deep
        ("tests.jobs.test_task_declaration", "jobs.remind"),  # no app's: the last package
        ("tests.jobs", "jobs.remind"),  # the package itself
        ("top_level", "top_level.remind"),
        ("nowhere.at.all", "at.remind"),
    ],
)
def test_task_is_named_after_app_and_function(module: str, name: str) -> None:
    def remind(day: date) -> None: ...

    remind.__module__ = module
    try:
        assert task(remind).name == name
        assert task()(remind).name == name
        assert task(queue="mail")(remind).options.queue == "mail"
        assert get_task(name).function is remind
    finally:
        registry.unregister(name)


def test_store_task_is_named_alike() -> None:
    for declared, atomic in ((store_task(_with_store), True), (store_task(atomic=False)(_with_store), False)):
        assert (declared.name, declared.is_store_task, declared.atomic) == ("jobs._with_store", True, atomic)
    registry.unregister("jobs._with_store")


def test_name_that_two_derive_is_refused() -> None:
    def remind() -> None: ...

    def twin() -> None: ...

    remind.__module__, twin.__module__ = "project.salon.tasks", "project.salon.mails"
    twin.__name__ = twin.__qualname__ = "remind"
    task(remind)
    try:
        with pytest.raises(TaskInvalid) as caught:
            task(twin)
        assert re.search(
            r"two tasks are named 'salon.remind': project\.salon\.tasks\.\S+remind and project\.salon\.mails\.remind; "
            "give one of them another name with name='…'",
            str(caught.value),
        )
    finally:
        registry.unregister("salon.remind")


def test_function_without_usable_name_is_refused() -> None:
    with pytest.raises(TaskInvalid, match=r"'jobs\.<lambda>' cannot be a task's name"):
        task(lambda: None)
    with pytest.raises(TaskInvalid, match="task '_generator': the handler is a generator"):
        task(_generator)
    wrong: Any = "send-mail"
    with pytest.raises(TaskInvalid, match="as a keyword: name='send-mail'"):
        task(wrong)


def test_name_needs_loaded_apps() -> None:
    code = "import salon_jobs\n\n\n@salon_jobs.task\ndef remind() -> None: ..."
    done = run_python("-c", code, environment=os.environ)
    assert "TaskInvalid: the name of task __main__.remind comes from its app, and Django has not loaded" in done.stderr


def test_name_belongs_to_one_function() -> None:
    refused: tuple[Any, ...] = (_async_generator, _with_store)
    for wrong in refused:
        with pytest.raises(TaskInvalid):
            task(name=NAME)(wrong)
    assert NAME not in registry.task_names(), "a declaration that is refused leaves the name free"
    for _ in range(2):
        task(name=NAME)(_fine)
    with pytest.raises(TaskInvalid, match=f"two tasks are named '{NAME}'"):
        store_task(name=NAME)(_with_store)


def test_timeout_is_retried_if_named() -> None:
    error = TimedOut("timed out")
    assert ErrorRules(retry_on=(OSError,)).outcome(error) == Errored(error, retryable=False)
    assert ErrorRules(retry_on=(TimedOut,)).outcome(error) == Errored(error)
    assert ErrorRules().outcome(error) == Errored(error)
    assert ErrorRules(discard_on=(TimedOut,)).outcome(error) == Cancelled("discarded", "TimedOut: timed out")


def test_declared_task_is_still_a_function() -> None:
    @task(name=NAME)
    def double(number: int = 2) -> int:
        """Double it."""
        return number * 2

    assert double(4) == 8
    assert double.__doc__ == "Double it."
    assert double.__name__ == "double"
    assert repr(double) == f"<Task {NAME}>"
    assert get_task(NAME) is double


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": timedelta(0)}, "timeout must be a timedelta above zero"),
        ({"timeout": 60}, "timeout must be a timedelta above zero, not 60"),
        ({"wait_timeout": -MINUTE}, "wait_timeout must be"),
        ({"wait_timeout": MINUTE, "wait_overtime": "x"}, "wait_overtime must be"),
        ({"wait_overtime": MINUTE}, "wait_overtime is grace before a wait_timeout counts"),
        ({"timeout": MINUTE, "waiting_shortens_timeout": True}, "left of the wait_timeout: pass both"),
        ({"wait_timeout": MINUTE, "waiting_shortens_timeout": True}, "left of the wait_timeout: pass both"),
        ({"timeout": MINUTE, "waiting_shortens_timeout": 1}, "must be True or False"),
    ],
)
def test_impossible_timeouts_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        store_task(name=NAME, **options)


def test_unset_means_off() -> None:
    off = Timeouts()
    assert (off.any, off.run_s(1e9), off.expiry(1e9)) == (False, None, None)


@pytest.mark.parametrize(
    ("timeout_s", "waited_s", "left_s"),
    [(15, 0, 15), (15, 15, 15), (15, 16, 14), (3600, 20, 10), (15, 29, 1), (15, 29.9, 1), (0.5, 29.9, 0.5)],
)
def test_waiting_shortens_timeout_to_a_second(timeout_s: float, waited_s: float, left_s: float) -> None:
    options: Any = {"timeout": timedelta(seconds=timeout_s), "wait_timeout": timedelta(seconds=30)}
    assert Timeouts(**options).run_s(waited_s) == timeout_s
    assert Timeouts(**options, waiting_shortens_timeout=True).run_s(waited_s) == left_s


def test_job_expires_after_wait_timeout() -> None:
    timeouts = Timeouts(wait_timeout=MINUTE)
    assert timeouts.expiry(60) is None
    assert timeouts.expiry(61) == "waited 61 s, longer than 60 s"
    assert timeouts.expiry(7_500.4) == "waited 7,500 s, longer than 60 s"


def test_wait_timeout_counts_after_overtime() -> None:
    hour, half = timedelta(hours=1), timedelta(seconds=30)
    timeouts = Timeouts(timeout=hour, wait_timeout=MINUTE, wait_overtime=half, waiting_shortens_timeout=True)
    assert timeouts.expiry(90) is None
    assert timeouts.expiry(91) == "waited 91 s, 61 s of it after the overtime, longer than 60 s"
    assert [timeouts.run_s(waited_s) for waited_s in (0, 30, 50)] == [60, 60, 40]


def test_task_imported_while_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that claims lists them while another one imports a module: the next list has its tasks."""

    def sort_late(names: Iterable[str]) -> list[str]:
        found = sorted(names)
        task(name=NAME)(_fine)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(registry, "sorted", sort_late, raising=False)
        registry.unregister(NAME)
        assert NAME not in registry.task_names(is_async=False)
    assert NAME in registry.task_names(is_async=False)
