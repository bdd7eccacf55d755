"""Follows pages that show a module and calls: the module is imported, the calls are made, the jobs are run."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib import admin
from django.test import override_settings
from django.urls import reverse

import salon_jobs.admin
from salon_jobs import flow
from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.testing import drain_jobs, perform_job
from tests.backend.django_tasks_api import PACKAGE
from tests.databases import spare_database
from tests.docs.markdown import blocks, read
from tests.integrations.tiny_project import TinyProject
from tests.management.operator import run
from tests.settings import url_for
from tests.support import change, seen
from tests.tasks import system


def page(path: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("calls", [f"docs/{path}.md"], indirect=True)


def job_ids() -> list[int]:
    return [job_id for (job_id,) in seen("SELECT id FROM salon_jobs_job ORDER BY id")]


@page("how-to/order")
@pytest.mark.usefixtures("database")
def test_order_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(calls[0], {})
    first, _, third, *_ = job_ids()
    shown = run("show", str(third))[0]
    assert f"it is the turn of #{first} sync-customer: queued; 1 job waiting before this one" in shown
    assert f"comes after #{first}, which has its concurrency key" in shown
    drain_jobs()
    ran = capsys.readouterr().out.splitlines()
    assert [line for line in ran if line.startswith("ada")] == ["ada 1", "ada 2", "ada 3"]
    assert "bob 1" in ran


@page("how-to/when-all-are-done")
@pytest.mark.usefixtures("database")
def test_when_all_are_done_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    [call] = calls
    exec(call, {})
    first = str(job_ids()[0])
    assert json.loads(run("show", first, "--json")[0])["follow_up"] == {"task": "summarize-import", "remaining": 3}
    assert re.search(r"^ *then +summarize-import, after 3 more jobs$", run("show", first)[0], re.MULTILINE)
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["part 0", "part 1", "part 2", "all parts of 2026-05-05"]


@page("how-to/flows")
@pytest.mark.usefixtures("database")
def test_flows_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, wait, more = calls
    order_of_page: dict[str, Any] = {}
    exec(first, order_of_page)
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job WHERE task = 'charge-order'")
    shown = run("show", str(job_id))[0].partition("its flow\n")[2]
    assert re.sub("#[0-9]+", "#", shown).rstrip().splitlines() == [
        "  fetch-order #: queued",
        "> charge-order #: held, after fetch-order #",
        "  ship-order #: held, after charge-order #",
        "  report-order #: held, after fetch-order #, charge-order #, if one of them fails",
    ]
    assert [job.task for job in drain_jobs()] == ["fetch-order", "charge-order", "ship-order"]
    exec(wait, order_of_page)
    names: dict[str, Any] = {}
    exec(more, names)
    with flow("import") as order:
        order.add(names["split"].call(2))
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["charged 700", "700", "part 0", "part 1", "joined"]


@page("how-to/schedules")
def test_schedules_page(calls: list[str], stores: list[UUID], capsys: pytest.CaptureFixture[str]) -> None:
    add, change_them, look, _ = calls
    names: dict[str, Any] = {"store_id": stores[0]}
    exec(add, names)
    assert capsys.readouterr().out == "created\n"
    schedules = "SELECT key, store_id FROM salon_jobs_schedule ORDER BY 1"
    assert seen(schedules) == [("terminal-7", None), ("weekly-report", stores[0])]
    exec(change_them, names)
    assert seen(schedules) == [("weekly-report", stores[0])]
    change("UPDATE salon_jobs_schedule SET next_at = now(), owed_from = now() - interval '1 h'")
    StoredSchedules(using="default").poll()
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["terminal 7", f"Sales of {stores[0]}"]
    exec(look, names)
    assert capsys.readouterr().out.endswith(" succeeded\n")


def periodic_task(name: str, **given: Any) -> SimpleNamespace:
    """Return a row of django-celery-beat, with its defaults."""
    schedules = dict.fromkeys(("interval", "crontab", "solar", "clocked"))
    instants: dict[str, Any] = dict.fromkeys(("start_time", "expires"))
    options = dict.fromkeys(("queue", "exchange", "routing_key", "priority", "expire_seconds"))
    row = {"task": "shop.tasks.heartbeat", "args": "[]", "kwargs": "{}", "enabled": True, "one_off": False}
    return SimpleNamespace(name=name, **schedules | instants | options | row | given)


def crontab(minute: str, hour: str, day_of_month: str, month_of_year: str, day_of_week: str) -> SimpleNamespace:
    days = {"day_of_month": day_of_month, "month_of_year": month_of_year, "day_of_week": day_of_week}
    return SimpleNamespace(minute=minute, hour=hour, timezone=ZoneInfo("Asia/Tokyo"), **days)


def copy_rows(script: str, rows: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script on rows of django-celery-beat, which is not installed."""
    objects = SimpleNamespace(order_by=lambda name: sorted(rows, key=attrgetter(name)))
    models = SimpleNamespace(PeriodicTask=SimpleNamespace(objects=objects))
    modules = {"django_celery_beat.models": models, "shop": SimpleNamespace(tasks=SimpleNamespace(heartbeat=system))}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(script, {})


@page("how-to/schedules")
@pytest.mark.usefixtures("database")
def test_copied_schedules_of_celery(
    calls: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script leaves out is printed first."""
    minute, at_nine = SimpleNamespace(schedule=SimpleNamespace(run_every=timedelta(minutes=1))), ("0", "9")
    cleanup = "celery.backend_cleanup"
    ended = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [
        periodic_task("minutely", interval=minute, kwargs='{"note": "a"}', start_time=ended, queue="mail", priority=3),
        periodic_task("monthly", crontab=crontab("0, 30", "9", "1,15", "*", "*"), enabled=False),
        periodic_task("weekly", crontab=crontab(*at_nine, "*", "*", "mon"), expire_seconds=60),
        periodic_task("both", crontab=crontab(*at_nine, "1-7", "*", "mon")),
        periodic_task("both, by steps", crontab=crontab(*at_nine, "*/2", "*", "mon")),
        periodic_task("dawn", solar=SimpleNamespace(event="sunrise")),
        periodic_task("once", clocked=SimpleNamespace(clocked_time=ended), one_off=True),
        periodic_task("ended", interval=minute, expires=ended),
        periodic_task("later", interval=minute, start_time=datetime.now(UTC) + timedelta(days=1)),
        periodic_task(cleanup, task=cleanup, crontab=crontab("0", "4", "*", "*", "*")),
    ]
    copy_rows(calls[-1], rows, monkeypatch)
    shown = [line.partition(" due on days")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "left out: both: it is",
        "left out: both, by steps: it is",
        "left out: celery.backend_cleanup: celery.backend_cleanup is not in TASKS",
        "left out: dawn: it follows the sun: let its job snooze until the instant that you compute",
        "left out: ended: it begins or ends at an instant: schedule it then, or delete it then",
        "left out: later: it begins or ends at an instant: schedule it then, or delete it then",
        "left out of minutely: queue=mail",
        "left out of minutely: priority=3",
        "left out: once: it runs once: enqueue it with run_at",
        "left out of weekly: expire_seconds=60",
        "copied: minutely",
        "copied: monthly",
        "copied: weekly",
    ]
    columns = "key, line, timezone, every, payload->>'note', paused_at IS NOT NULL"
    assert seen(f"SELECT {columns} FROM salon_jobs_schedule ORDER BY key") == [
        ("minutely", "", "UTC", timedelta(minutes=1), "a", False),
        ("monthly", "0,30 9 1,15 * *", "Asia/Tokyo", None, "", True),
        ("weekly", "0 9 * * mon", "Asia/Tokyo", None, "", False),
    ]


@page("how-to/django-tasks")
@pytest.mark.usefixtures("database")
def test_django_tasks_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    enqueue, look, cancel, helpers, at_once, repeat = calls
    exec(enqueue, names)
    catalogue = importlib.import_module("shop.tasks").import_catalogue
    first, second = catalogue.enqueue("acme"), catalogue.enqueue(supplier="acme")
    assert first.id == second.id
    assert {job.task for job in drain_jobs()} == {"shop.tasks.send_receipt", "shop.tasks.import_catalogue"}
    exec(look, names)
    assert capsys.readouterr().out == "SUCCESSFUL receipt of order 7\n"
    assert names["same"] == names["result"]
    assert catalogue.get_result(first.id).return_value == {"supplier": "acme", "attempt": 1}
    exec(cancel, names)
    assert capsys.readouterr().out == "cancelled\n"
    exec(helpers, names)
    exec(at_once, names)
    with override_settings(TASKS=names["TASKS"]):
        assert importlib.import_module("shop.tasks").send_receipt.enqueue(9).return_value == "receipt of order 9"
    exec(repeat, names)
    change("UPDATE salon_jobs_schedule SET next_at = now(), owed_from = now() - interval '1 h'")
    StoredSchedules(using="default").poll()
    assert [job.task for job in drain_jobs()] == ["shop.tasks.import_catalogue"]


SHOP_TASKS = f"from {PACKAGE} import task\n@task\ndef send_receipt(order_id): return order_id\n"
ENQUEUE = (
    "from shop.tasks import send_receipt as task; result = task.enqueue(order_id=7); print(result.id, result.status)"
)


def on_either(folder: Path, url: str) -> TinyProject:
    """Return a migrated project with the settings of the page, for SQLite and for PostgreSQL."""
    project = TinyProject(folder, url=url, tasks=SHOP_TASKS, forked=True)
    [chosen] = [each.text for each in blocks(read("docs/how-to/django-tasks.md")) if each.action.endswith("_too.py")]
    with (folder / "tiny_settings.py").open("a") as settings:
        settings.write("\n" + chosen.replace("django.tasks", PACKAGE))
    for command in ("check", "migrate"):
        done = project.manage(command)
        assert done.returncode == 0, done.stderr
    return project


@pytest.mark.process
def test_django_tasks_page_on_sqlite(tmp_path: Path) -> None:
    project = on_either(tmp_path, f"sqlite:///{tmp_path}/db.sqlite3")
    done = project.manage("shell", "--no-imports", "-c", ENQUEUE)
    assert done.stdout.split()[1:] == ["SUCCESSFUL"], done.stderr
    assert "Unknown command: 'runworker'" in project.manage("runworker", "--burst").stderr


@pytest.mark.process
def test_django_tasks_page_on_postgresql_as_well(tmp_path: Path, migrated: None) -> None:
    with spare_database(copied=False) as name:
        project = on_either(tmp_path, url_for(None, name))
        done = project.manage("shell", "--no-imports", "-c", ENQUEUE)
        result_id, status = done.stdout.split()
        assert status == "READY", done.stderr
        assert project.manage("runworker", "--burst", "--processes", "1").returncode == 0
        look = f"from shop.tasks import send_receipt as task; print(task.get_result({result_id!r}).return_value)"
        assert project.manage("shell", "--no-imports", "-c", look).stdout == "7\n"


@page("how-to/dashboard")
def test_pages_with_another_model_admin(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the themes section writes it: each page is ours and the theme's, and works on a site of its own."""
    [_, register] = calls
    site, theme = admin.AdminSite(), ModuleType("unfold.admin")
    for model, page_of_ours in admin.site._registry.items():
        if model._meta.app_label == "salon_jobs":
            site.register(model, type(page_of_ours))
    before = {model: type(each).__name__ for model, each in site._registry.items()}
    monkeypatch.setattr(admin, "site", site)
    monkeypatch.setattr(theme, "ModelAdmin", type("ThemedAdmin", (admin.ModelAdmin,), {}), raising=False)
    monkeypatch.setitem(sys.modules, "unfold", ModuleType("unfold"))
    monkeypatch.setitem(sys.modules, "unfold.admin", theme)
    exec(register, {})
    for model, name in before.items():
        found = site.get_model_admin(model)
        assert isinstance(found, theme.ModelAdmin)
        assert isinstance(found, getattr(salon_jobs.admin, name))
        assert found.get_urls()


@page("how-to/dashboard")
def test_pages_on_another_site(calls: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(calls[0], names)
    urls = ModuleType("urls_of_the_page")
    urls.urlpatterns = names["urlpatterns"]  # type: ignore[attr-defined]
    assert reverse("ops:salon_jobs_dashboard_changelist", urlconf=urls) == "/ops/salon_jobs/dashboard/"  # type: ignore[arg-type]


@page("how-to/steps")
def test_steps_page(calls: list[str], stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    [retry] = calls
    shop, done, names = importlib.import_module("shop.tasks"), list[str](), dict[str, Any]()
    exec(retry, names)

    def charge(order_id: int, *, idempotency_key: str) -> Any:
        done.append(idempotency_key)
        return shop.Receipt("R-7", 4_200)

    def mail(*arguments: Any) -> None:
        done.append(arguments[1])
        if done.count("Receipt R-7") < 3:
            raise OSError

    charge.__annotations__["return"] = shop.Receipt
    monkeypatch.setattr(shop, "charge", charge)
    monkeypatch.setattr(shop, "send_mail", mail)
    monkeypatch.setattr(shop, "reduce_stock", lambda order_id: done.append(str(order_id)))
    job = shop.fulfil.using(max_attempts=2).enqueue(store_id=stores[0], order_id=7)
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(drain_jobs(raise_errors=False, now=later)) == 2
    assert done == ["order-7", "7", "Receipt R-7", "Receipt R-7"]
    names["retry_from_the_start"](job.id)
    drain_jobs(now=later)
    assert done[4:] == ["order-7", "7", "Receipt R-7"]
    shop.bill.enqueue(store_id=stores[0])
    drain_jobs()
    assert done[7:] == ["1", "2", "3"]


@page("coming-from-celery")
@pytest.mark.usefixtures("database")
def test_coming_from_celery_page(calls: list[str]) -> None:
    exec(calls[0], {"order": SimpleNamespace(pk=41)})
    charge = importlib.import_module("shop.tasks").charge
    jobs = "SELECT queue, priority, max_attempts, payload FROM salon_jobs_job ORDER BY id"
    now, later = seen(jobs)
    assert now == ("default", 0, 6, '{"order_id": 41}')
    assert later == ("payments", -3, 6, '{"order_id": 7}')
    assert [job.task for job in drain_jobs()] == [charge.name]
    assert seen(jobs) == [later]


@page("coming-from-other-queues")
@pytest.mark.usefixtures("database", "own_entries")
def test_coming_from_other_queues_page(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fixture finds a call that was left, and nothing else."""
    fixture, enqueue, test = calls
    exec(enqueue, {"photo": SimpleNamespace(pk=41)})
    assert seen("SELECT payload, max_attempts, run_at > now() FROM salon_jobs_job ORDER BY id") == [
        ('{"photo_id": 41}', 6, False),
        ('{"photo_id": 7}', 6, True),
    ]
    names: dict[str, Any] = {}
    exec(fixture, names)
    inspect.unwrap(names["no_direct_calls"])(monkeypatch)
    thumbnail = importlib.import_module("shop.tasks").make_thumbnail
    with pytest.raises(AssertionError, match=r"a direct call runs shop\.make_thumbnail here: call its enqueue"):
        thumbnail(7)
    perform_job(thumbnail, 7)
    assert [job.task for job in drain_jobs()] == ["shop.make_thumbnail"]
    exec(test, {})
    importlib.import_module("shop.crontab")
    [entry] = cron_entries.all()
    assert (entry.name, entry.overlap) == ("shop.refresh_feeds", False)
