"""A host whose clock is hours wrong: pages and commands tell the ages by the database's clock, as on any other host."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from salon_jobs.core.records import StoreId
from salon_jobs.db import clock
from tests.admin.pages import ADMIN, Rows, text_of
from tests.management.operator import insert
from tests.support import change, seen
from tests.waiting import eventually

MODELS = sorted(apps.get_app_config("salon_jobs").get_models(), key=lambda model: model.__name__)
LISTS = {str(model._meta.model_name): model for model in MODELS if admin.site.is_registered(model)}
WRONG = (5, -5)
AGE = re.compile(r"(\bin )?[<≈]?[\d.,]+ (ms|s)\b( ago)?|\bnow\b")


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


@contextmanager
def wrong_by(hours: int) -> Iterator[None]:
    """Move the clock that our modules and Django's read."""

    class Moved(datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours)

    with pytest.MonkeyPatch.context() as patched:
        for name, module in [*sys.modules.items()]:
            is_theirs = name == "django.utils.timezone"
            if (is_theirs or name.startswith("salon_jobs.")) and vars(module).get("datetime") is datetime:
                patched.setattr(module, "datetime", Moved)
        assert abs(timezone.now() - datetime.now(UTC)) > timedelta(hours=abs(hours) - 1)
        yield


def shape(text: str) -> str:
    """Return a page without its numbers; ages of seconds are alike."""
    return re.sub(r"[\d.,:]+", "#", AGE.sub("~", text))


def require_same(read: Callable[[], str]) -> None:
    """Read a page by the right and by wrong clocks: it says the same, unless a minute ended in between."""
    found: list[str] = []

    def is_same() -> bool:
        found[:] = [shape(read())]
        for hours in WRONG:
            with wrong_by(hours):
                found.append(shape(read()))
        return len(set(found)) == 1

    eventually(is_same, what=lambda: "\n\n".join(found))


@pytest.fixture
def aged(busy: tuple[Rows, Rows]) -> None:
    """Have rows of every age beside those of a busy deployment."""
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '3 hours' WHERE state = 'failed'")
    due = {"task": "test-system", "payload": "{}", "line": "* * * * *", "catch_up": "5 min", "jitter": "0"}
    insert("schedule", key="soon", next_at=timezone.now() + timedelta(hours=2), **due)
    insert("schedule", key="late", next_at=timezone.now() - timedelta(minutes=7), **due)
    later = timezone.now() + timedelta(hours=2)
    insert("job", task="test-system", attempts=2, run_at=later)


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize("name", LISTS)
def test_list_and_row_tell_age_by_database(operator: Client, name: str) -> None:
    require_same(partial(text_of, operator, f"{name}/"))
    row = LISTS[name]._base_manager.using("operator").order_by("pk").first()
    if row is not None and name != "dashboard":
        require_same(partial(text_of, operator, f"{name}/{row.pk}/change/"))


@pytest.mark.usefixtures("aged")
def test_other_pages_tell_age_by_database(operator: Client, stores: list[StoreId]) -> None:
    for address in ("queue=mail", "task=send-mail", f"store={stores[0]}"):
        require_same(partial(text_of, operator, f"job/overview/?{address}"))
    for address in ("enqueued=1h", "state__exact=failed&ended=1h", "state__exact=failed&ended=1d"):
        require_same(partial(text_of, operator, f"job/?{address}"))


@pytest.mark.usefixtures("aged")
def test_commands_tell_age_by_database(two: tuple[Rows, Rows]) -> None:
    for words in ("status", "top --once", "cron", "list", f"show {two[0].job}", "schedules", "limit", "inbox", "stats"):

        def written(words: str = words) -> str:
            out = StringIO()
            with suppress(SystemExit):
                call_command("salon_jobs", *words.split(), stdout=out, stderr=out)
            return out.getvalue()

        assert written()
        require_same(written)


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize("hours", WRONG)
def test_options_count_from_time_of_database(hours: int) -> None:
    """An age as an option, too: what is retried or discarded by it must not depend on the host."""

    def listed() -> list[int]:
        out = StringIO()
        call_command("salon_jobs", "list", "--since", "2h", "--json", stdout=out)
        return sorted(each["id"] for each in json.loads(out.getvalue()))

    right = listed()
    failed = [number for (number,) in seen("SELECT id FROM salon_jobs_job WHERE state = 'failed'")]
    assert set(failed) <= set(right)
    with wrong_by(hours):
        assert listed() == right
        call_command("salon_jobs", "retry", *map(str, failed), "--at", "1h", "--yes", stdout=StringIO())
    within = "SELECT bool_and(run_at BETWEEN now() AND now() + interval '1 h') FROM salon_jobs_job WHERE id = ANY (%s)"
    assert seen(within, failed) == [(True,)]


@pytest.mark.parametrize("hours", WRONG)
def test_pause_is_written_by_database(operator: Client, hours: int) -> None:
    with wrong_by(hours):
        sent = {"kind": "queue", "name": "mail", "paused": "on", "max_concurrency": "", "rate": "", "burst": ""}
        assert operator.post(f"{ADMIN}limit/add/", sent).status_code == 302
    assert seen("SELECT paused_at BETWEEN now() - interval '1 h' AND now() FROM salon_jobs_limit") == [(True,)]


@pytest.mark.usefixtures("aged")
def test_page_shows_time_of_database(operator: Client) -> None:
    with wrong_by(5):
        page = text_of(operator, "dashboard/")
    [shown] = re.findall(r"Updated ([\d-]+ [\d:]+) ", page)
    [(at,)] = seen("SELECT now()")
    assert abs(datetime.fromisoformat(shown) - timezone.localtime(at).replace(tzinfo=None)) < timedelta(hours=1)


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize(("page", "most"), [("job/", 1), ("process/", 1), ("cronentrystate/", 1), ("dashboard/", 0)])
def test_page_reads_clock_once(operator: Client, page: str, most: int) -> None:
    """Not at all where another of its statements brings the time along."""
    with CaptureQueriesContext(connections["operator"]) as captured:
        text_of(operator, page)
    asked = [query["sql"] for query in captured.captured_queries]
    assert asked
    assert sum(sql.strip() == "SELECT statement_timestamp()" for sql in asked) == most


def test_clock_outside_of_page_needs_alias(database: None) -> None:
    """It is read anew each time; what a statement brought along is kept for the page alone."""
    with pytest.raises(LookupError, match="Name an alias"):
        clock.now()
    first = clock.now("default")
    assert first < clock.now("default")
    with clock.one_instant("default"):
        assert clock.brought(first, using="default") is first
        assert clock.now() is first
    assert clock.now("default") > first
