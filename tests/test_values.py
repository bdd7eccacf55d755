"""What projects pass and return: text of templates and translations, subclasses, and instants of a frozen clock.

Each kind of value goes everywhere that JSON is made, and arrives as its base.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db import transaction
from django.db.models import IntegerChoices, TextChoices
from django.http import HttpRequest
from django.template import Context, Template
from django.utils import timezone
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from django.utils.translation import activate, get_language, gettext_lazy, override
from freezegun import freeze_time

from salon_jobs import Retry, current_job, emit, enqueue_job, flow, get_job, schedule
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.jobs.payload import PayloadType
from salon_jobs.schedules.entries import cron, cron_entries
from salon_jobs.testing import assert_enqueued, drain_jobs, perform_job
from tests import tasks
from tests.backend.calls import echo, give
from tests.inside import declare_no_entries
from tests.support import change, seen
from tests.tasks import Hooks


class Text(str):
    def __str__(self) -> str:
        return "another"


class Number(int): ...


class Share(float): ...


class Price(Decimal): ...


class Day(date): ...


class Instant(datetime): ...


class Hour(time): ...


class Length(timedelta): ...


class Colour(TextChoices):
    RED = "red", gettext_lazy("Red")


class Size(IntegerChoices):
    LARGE = 3


def frozen(make: Callable[[], Any]) -> Any:
    with freeze_time("2026-02-03 04:05:06"):
        return make()


# Each kind of value, and what JSON has of it.
TEXTS: dict[str, tuple[Any, Any]] = {
    "template": (Template("<b>{{ n }}</b>").render(Context({"n": "&"})), "<b>&amp;</b>"),
    "format_html": (format_html("<b>{}</b>", "&"), "<b>&amp;</b>"),
    "escape": (escape("&"), "&amp;"),
    "safe key": ({SafeString("a"): SafeString("b")}, {"a": "b"}),
    "lazy": (gettext_lazy("Yes"), "Ja"),
    "lazy key": ({lazystr("a"): [lazystr("b")]}, {"a": ["b"]}),
    "str": (Text("one"), "one"),
    "int": (Number(7), 7),
    "float": (Share(0.5), 0.5),
    "text choice": (Colour.RED, "red"),
    "number choice": (Size.LARGE, 3),
}
VALUES: dict[str, tuple[Any, Any]] = {
    **TEXTS,
    "lazy object": (SimpleLazyObject(lambda: {"a": Text("b")}), {"a": "b"}),
    "Decimal": (Price("1.10"), "1.10"),
    "date": (Day(2026, 2, 3), "2026-02-03"),
    "datetime": (Instant(2026, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-02-03T04:05:06Z"),
    "time": (Hour(4, 5), "04:05:00"),
    "timedelta": (Length(seconds=90), "PT90S"),
    "frozen now": (frozen(timezone.now), "2026-02-03T04:05:06Z"),
    "frozen day": (frozen(lambda: timezone.now().date()), "2026-02-03"),
    "frozen in a list": ([{"at": frozen(timezone.now)}], [{"at": "2026-02-03T04:05:06Z"}]),
}


def payload() -> Any:
    [(stored,)] = seen("SELECT payload FROM salon_jobs_job ORDER BY id DESC LIMIT 1")
    return json.loads(stored)["data"]


def by_enqueue(value: Any) -> Any:
    tasks.anything.enqueue(data=value)
    assert_enqueued(tasks.anything, data=value)
    return payload()


def by_name(value: Any) -> Any:
    enqueue_job("test-anything", {"data": value})
    return payload()


def by_enqueue_many(value: Any) -> Any:
    tasks.anything.enqueue_many([tasks.anything.call(value)])
    return payload()


def by_flow(value: Any) -> Any:
    with flow("values") as f:
        f.add(tasks.anything.call(value))
    return payload()


def by_schedule(value: Any) -> Any:
    schedule(tasks.anything.call(value), "0 3 * * *", key="nightly")
    return json.loads(seen("SELECT payload FROM salon_jobs_schedule")[0][0])["data"]


def by_cron(value: Any) -> Any:
    cron("0 3 * * *", tasks.anything, name="nightly", payload={"data": value})
    [entry] = cron_entries.all()
    return json.loads(tasks.anything.payload.bind((), entry.payload_at(datetime.now(UTC))).json)["data"]


def by_result(value: Any) -> Any:
    language = get_language()

    def body(_: Any) -> Any:
        activate(language)  # which a run does not have from the caller
        return value

    tasks.hooks.system = body
    job = tasks.anything.enqueue(data=None)
    drain_jobs()
    return get_job(job.id).value


def by_step(value: Any) -> Any:
    kept: list[Any] = []
    language = get_language()

    def body(_: Any) -> None:
        activate(language)
        kept.append(current_job().step("made", lambda: value))
        if len(kept) == 1:
            raise Retry(timedelta(0))

    tasks.hooks.system = body
    tasks.anything.enqueue(data=None)
    drain_jobs(raise_errors=False)
    assert kept[0] == kept[1], "the first attempt gets what the next one does"
    return kept[1]


def by_emit(value: Any) -> Any:
    with transaction.atomic():
        emit("rn::memory:::orders", event="placed", payload={"data": value})
    change("DELETE FROM salon_jobs_message WHERE id < (SELECT max(id) FROM salon_jobs_message)")
    return seen("SELECT payload FROM salon_jobs_message")[0][0]["data"]


PLACES = (by_enqueue, by_name, by_enqueue_many, by_flow, by_schedule, by_cron, by_result, by_step, by_emit)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_value_is_written_as_its_base(
    place: Callable[[Any], Any], hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind; in JSON, so that nobody's class is needed to read it."""
    for name, (value, written) in VALUES.items():
        declare_no_entries(monkeypatch)
        with override("de"):
            assert place(value) == written, name


@pytest.mark.usefixtures("database")
def test_django_tasks_take_and_return_them(hooks: Hooks, process_id: int) -> None:
    """A result is what Django's own interface makes of it, and ``perform_job`` checks it as a worker does."""
    values = {name: value for name, (value, _) in TEXTS.items()}
    written = {name: written for name, (_, written) in TEXTS.items()}
    with override("de"):
        result: Any = echo.enqueue(values)
        assert drain_jobs()[0].task == "tests.backend.calls.echo"
        result.refresh()
        assert result.return_value == [[written], {}]
    with pytest.raises(TypeError, match="Unsupported type"):
        perform_job(cast("Any", give), "object")


TYPED: list[tuple[Any, Any, Any]] = [
    (str, SafeString("a"), "a"),
    (str, gettext_lazy("Yes"), "Ja"),
    (int, Number(7), 7),
    (float, Share(0.5), 0.5),
    (Decimal, Price("1.10"), Decimal("1.10")),
    (date, Day(2026, 2, 3), date(2026, 2, 3)),
    (date, frozen(lambda: timezone.now().date()), date(2026, 2, 3)),
    (datetime, frozen(timezone.now), datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (time, Hour(4, 5), time(4, 5)),
    (timedelta, Length(seconds=90), timedelta(seconds=90)),
    (dict[str, str], {SafeString("a"): SafeString("b")}, {"a": "b"}),
    (dict[int, list[str]], {Number(1): [Text("b")]}, {1: ["b"]}),
    (Colour, Colour.RED, Colour.RED),
    (Size, 3, Size.LARGE),
    (list[Colour], ["red"], [Colour.RED]),
    (dict[str, Size | None], {"a": Size.LARGE}, {"a": Size.LARGE}),
]


@pytest.mark.parametrize(("kind", "value", "arrives"), TYPED, ids=lambda value: type(value).__name__)
def test_typed_argument_arrives_as_its_base(kind: Any, value: Any, arrives: Any) -> None:
    space: dict[str, Any] = {"kind": kind}
    exec("def typed(value: kind) -> None: ...", space)
    payload = PayloadType("typed", space["typed"], with_store=False)
    with override("de"):
        [got] = payload.decode(payload.bind((value,), {}).json, None).values()
    assert got == arrives
    assert type(got) is type(arrives)


class Level(IntEnum):
    LOW = 1


@dataclass
class Counts:
    by_number: dict[int, str]
    by_level: dict[Level, int]


RETURNED: list[tuple[Any, Any]] = [
    *((kind, arrives) for kind, _, arrives in TYPED),
    (dict[int, str], {1: "a"}),
    (dict[float, int], {0.5: 1}),
    (dict[Level, str], {Level.LOW: "a"}),
    (dict[Size, str], {Size.LARGE: "a"}),
    (dict[date, int], {date(2026, 2, 3): 1}),
    (Counts, Counts({1: "a"}, {Level.LOW: 2})),
    (list[dict[int, str]], [{1: "a"}, {2: "b"}]),
    (tuple[dict[int, str], int], ({1: "a"}, 2)),
    (dict[str, dict[int, Counts]], {"x": {3: Counts({}, {})}}),
]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(("kind", "value"), RETURNED, ids=[getattr(kind, "__name__", "") for kind, _ in RETURNED])
def test_next_member_gets_what_one_returned(
    kind: Any, value: Any, hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal, and of the annotated type, as an argument of that type would arrive."""
    monkeypatch.setitem(tasks.anything.function.__annotations__, "return", kind)
    got: list[Any] = []

    def body(is_last: bool) -> Any:
        if is_last:
            got.append(current_job().flow.result_of(tasks.anything))
        return value

    hooks.system = body
    with flow("results") as f:
        f.add(tasks.anything.call(True), after=f.add(tasks.anything.call(False)))
    drain_jobs()
    assert got == [value]
    assert type(got[0]) is type(value)


@pytest.mark.usefixtures("database")
def test_enqueueing_while_time_is_frozen(hooks: Hooks, process_id: int) -> None:
    with freeze_time("2026-02-03 04:05:06"):
        now = timezone.now()
        jobs = [
            tasks.anything.enqueue(data=now),
            tasks.anything.using(run_at=now, expires_at=now + timedelta(days=36_000)).enqueue(data=now.date()),
        ]
        assert_enqueued(tasks.anything, data=now)
        assert_enqueued(tasks.anything, data=now.date())
    hooks.system = lambda data: data
    drain_jobs()
    assert [get_job(job.id).value for job in jobs] == ["2026-02-03T04:05:06Z", "2026-02-03"]


@pytest.mark.usefixtures("database")
def test_running_while_time_is_frozen(hooks: Hooks) -> None:
    """The run's length is measured on one clock: freezegun stops the monotonic one too."""
    lengths: list[float] = []
    hooks.system = lambda data: lengths.append(current_job().run.ran_s)
    with freeze_time("2026-02-03 04:05:06"):
        tasks.anything.enqueue(data=1)
        drain_jobs()
    assert lengths == [0]


IMPOSSIBLE: list[tuple[Any, str]] = [
    (
        {"items": [0, {"author": User(username="x")}]},
        r"User is no value .*: pass its key, \.pk - at `\$\.data\.items\[1\]\.author`",
    ),
    (User.objects.all(), r"QuerySet is no value .*: pass a list of keys"),
    (User.objects, r"UserManager is no value .*: pass a list of keys"),
    (ContentFile(b"x"), "ContentFile is no value .*: store the file, and pass its name"),
    (HttpRequest(), "HttpRequest is no value .*: pass what the task needs of the request"),
    (ValueError("x"), r"ValueError is no value .*: pass its text, str\(…\)"),
    (User, "ModelBase is no value .*: pass its name"),
    (len, "builtin_function_or_method is no value .*: pass its name"),
    (iter("ab"), r"str_ascii_iterator is no value .*: pass list\(…\)|str_iterator is no value"),
    ({1, 2}.__iter__(), r"set_iterator is no value .*: pass list\(…\)"),
    (object(), "object is no value .*: pass what identifies it"),
    (SimpleLazyObject(lambda: User(username="x")), r"User is no value .*: pass its key"),
    ([1, float("nan")], r"nan is not a number in JSON - at `\$\.data\[1\]`"),
    ({"a": ["x\0"]}, r"a NUL character, which PostgreSQL cannot keep; remove it - at `\$\.data\.a\[0\]`"),
    ({"a": "\ud800"}, r"a lone surrogate, .* - at `\$\.data\.a`"),
]


@pytest.mark.parametrize(("value", "said"), IMPOSSIBLE, ids=[said.partition(" ")[0] for _, said in IMPOSSIBLE])
def test_impossible_argument_names_path_and_remedy(value: Any, said: str) -> None:
    with pytest.raises(PayloadInvalid, match=f"task 'test-anything': an argument cannot be written as JSON: .*{said}"):
        tasks.anything.call(value)


def test_naive_argument_names_its_remedy() -> None:
    with pytest.raises(PayloadInvalid, match=r"timezone component - at `\$\.at`; make it aware: timezone\.make_aware"):
        tasks.typed.call(date(2026, 2, 3), datetime(2026, 2, 3), Decimal(1), [])  # noqa: DTZ001
