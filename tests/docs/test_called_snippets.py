"""Follows pages that show a module and calls: the module is imported, the calls are made, the jobs are run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.jobs import registry
from salon_jobs.testing import drain_jobs
from tests.backend.django_tasks_api import PACKAGE
from tests.docs.markdown import blocks, read
from tests.support import seen


@pytest.fixture
def steps(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Write the page's module, and return the code of its calls."""
    found: list[str] = []
    for block in blocks(read(request.param)):
        action, _, path = block.action.partition(" ")
        text = block.text.replace("django.tasks", PACKAGE)
        if action == "write":
            (tmp_path / path).parent.mkdir()
            (tmp_path / path).write_text(text)
        elif action == "call":
            found.append(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]
    for name in registry.task_names():
        if name.startswith("shop."):
            registry.unregister(name)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("steps", ["docs/how-to/django-tasks.md"], indirect=True)
def test_djangos_tasks(steps: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    enqueue, look, helpers = steps
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


@pytest.mark.parametrize("steps", ["docs/how-to/steps.md"], indirect=True)
def test_steps(steps: list[str], stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    [retry] = steps
    shop, calls, names = importlib.import_module("shop.tasks"), list[str](), dict[str, Any]()
    exec(retry, names)

    def charge(order_id: int, *, idempotency_key: str) -> Any:
        calls.append(idempotency_key)
        return shop.Receipt("R-7", 4_200)

    def mail(*arguments: Any) -> None:
        calls.append(arguments[1])
        if calls.count("Receipt R-7") < 3:
            raise OSError

    charge.__annotations__["return"] = shop.Receipt
    monkeypatch.setattr(shop, "charge", charge)
    monkeypatch.setattr(shop, "send_mail", mail)
    monkeypatch.setattr(shop, "reduce_stock", lambda order_id: calls.append(str(order_id)))
    job = shop.fulfil.using(max_attempts=2).enqueue(store_id=stores[0], order_id=7)
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(drain_jobs(raise_errors=False, now=later)) == 2
    assert calls == ["order-7", "7", "Receipt R-7", "Receipt R-7"]
    names["retry_from_the_start"](job.id)
    drain_jobs(now=later)
    assert calls[4:] == ["order-7", "7", "Receipt R-7"]
    shop.bill.enqueue(store_id=stores[0])
    drain_jobs()
    assert calls[7:] == ["1", "2", "3"]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("steps", ["docs/coming-from-celery.md"], indirect=True)
def test_coming_from_celery(steps: list[str]) -> None:
    [calls] = steps
    exec(calls, {"order": SimpleNamespace(pk=41)})
    charge = importlib.import_module("shop.tasks").charge
    jobs = "SELECT queue, priority, max_attempts, payload FROM salon_jobs_job ORDER BY id"
    now, later = seen(jobs)
    assert now == ("default", 0, 6, '{"order_id": 41}')
    assert later == ("payments", -3, 6, '{"order_id": 7}')
    assert [job.task for job in drain_jobs()] == [charge.name]
    assert seen(jobs) == [later]
