"""Follows pages that show a module and calls: the module is imported, the calls are made, the jobs are run."""

from __future__ import annotations

import importlib
import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import flow
from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.testing import drain_jobs
from tests.management.operator import run
from tests.support import change, seen


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
    assert "comes after other jobs with its concurrency key" in shown
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
    first, more = calls
    exec(first, {})
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job WHERE task = 'charge-order'")
    shown = run("show", str(job_id))[0].partition("its flow\n")[2]
    assert re.sub("#[0-9]+", "#", shown).rstrip().splitlines() == [
        "  fetch-order #: queued",
        "> charge-order #: held, after fetch-order #",
        "  ship-order #: held, after charge-order #",
        "  report-order #: held, after fetch-order #, charge-order #, if one of them fails",
    ]
    assert [job.task for job in drain_jobs()] == ["fetch-order", "charge-order", "ship-order"]
    names: dict[str, Any] = {}
    exec(more, names)
    with flow("import") as order:
        order.add(names["split"].call(2))
    drain_jobs()
    assert capsys.readouterr().out.splitlines() == ["charged 700", "part 0", "part 1", "joined"]


@page("how-to/schedules")
def test_schedules_page(calls: list[str], stores: list[UUID], capsys: pytest.CaptureFixture[str]) -> None:
    add, change_them, look = calls
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


@page("how-to/django-tasks")
@pytest.mark.usefixtures("database")
def test_django_tasks_page(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    enqueue, look, helpers = calls
    exec(enqueue, names)
    catalogue = importlib.import_module("shop.tasks").import_catalogue
    first, second = catalogue.enqueue("acme"), catalogue.enqueue(supplier="acme")
    assert first.id == second.id
    assert {job.task for job in drain_jobs()} == {"shop.tasks.send_receipt", "shop.tasks.import_catalogue"}
    exec(look, names)
    assert capsys.readouterr().out == "SUCCESSFUL receipt of order 7\n"
    assert names["same"] == names["result"]
    assert catalogue.get_result(first.id).return_value == {"supplier": "acme", "attempt": 1}
    exec(helpers, names)


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
