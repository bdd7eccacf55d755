"""Tests that the twelve tasks and the crontab say exactly what SPEC §1.4 says."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from salon_jobs.jobs import registry
from salon_jobs.schedules import entries

TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)  # 03:00 JST on 2026-05-06
CATALOGUE = {
    "expire-tentative-reservations": (False, 3, None),
    "expire-tentative-for-store": (True, 10, "expire_tentative:{store_id}"),
    "aggregate-daily-sales": (False, 3, None),
    "aggregate-daily-sales-for-store": (True, 25, "aggregate_daily_sales:{store_id}:{target_date}"),
    "cleanup-deleted-customers": (False, 3, None),
    "cleanup-deleted-customers-for-store": (True, 5, "cleanup_customers:{store_id}:{cutoff}"),
    "purge-deleted-customer-notes": (False, 3, None),
    "purge-deleted-customer-notes-for-store": (True, 5, "purge_customer_notes:{store_id}:{cutoff}"),
    "cleanup-expired-operator-sessions": (False, 3, None),
    "cleanup-expired-operator-invitations": (False, 3, None),
    "send-operator-invitation-email": (True, None, None),
    "ping": (False, None, None),
}
CRONTAB = {
    "expire-tentative-reservations": "*/5 * * * *",
    "aggregate-daily-sales": "0 18 * * *",
    "cleanup-deleted-customers": "0 17 * * *",
    "purge-deleted-customer-notes": "0 15 * * *",
    "cleanup-expired-operator-sessions": "0 16 * * *",
    "cleanup-expired-operator-invitations": "0 16 * * *",
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_task_is_declared_as_specified(name: str) -> None:
    task = registry.get_task(name)

    assert (task.is_store_task, task.options.max_attempts, task.key_templates.get("job_key")) == CATALOGUE[name]
    assert task.options.job_key_mode == ("preserve_run_at" if task.key_templates.get("job_key") else "replace")
    assert task.atomic is (task.is_store_task and name != "send-operator-invitation-email")


def test_the_salon_declares_these_tasks_alone() -> None:
    ours = {task.name for task in registry.tasks() if task.origin.startswith("project.salon.")}

    assert ours == CATALOGUE.keys()


def test_the_crontab_is_as_specified() -> None:
    ours = {entry.task_name: entry for entry in entries.cron_entries.all() if entry.task_name in CATALOGUE}

    assert {name: entry.expression.line for name, entry in ours.items()} == CRONTAB
    for name, entry in ours.items():
        expected: dict[str, object] = {"reason": "cron"}
        if name == "aggregate-daily-sales":
            expected["target_date"] = date(2026, 5, 5)
        assert entry.payload_at(TICK) == expected
        registry.get_task(name).payload.bind((), entry.payload_at(TICK))
