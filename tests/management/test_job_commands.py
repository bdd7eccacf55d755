"""Runs ``salon_jobs list``, ``show`` and ``retry --at`` as an operator, and checks what they say of a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.core.management import CommandError

from salon_jobs.jobs.search import failure_kinds, retries_ahead
from salon_jobs.models import Job
from tests import tasks
from tests.management.operator import add, run
from tests.support import change, leases_of, new_store_id, run_due


def test_list_filters_newest_first(stores: list[UUID]) -> None:
    now = datetime.now(UTC)
    old = add(state="succeeded", created_at=now - timedelta(days=3), finished_at=now)
    failed = add(task="charge", state="failed", finished_at=now, error_class="builtins.KeyError", job_key="k:1")
    night = add(queue="night", store_id=stores[0], job_key="k:2")
    for options, expected in (
        ("", [night, failed, old]),
        ("--state failed --state queued", [night, failed]),
        ("--task charge", [failed]),
        ("--queue night", [night]),
        (f"--store {stores[0]}", [night]),
        ("--key k:2", [night]),
        ("--error-class builtins.KeyError", [failed]),
        ("--since 1d", [night, failed]),
        ("--until 1d", [old]),
        ("--limit 1", [night]),
    ):
        assert [row["id"] for row in json.loads(run("list", "--json", *options.split())[0])] == expected, options
    head, *rows = run("list")[0].splitlines()
    assert head.split()[:3] == ["id", "task", "state"]
    assert len(rows) == 3
    assert run("list", "--task", "nonsense")[1].endswith("\nno job matches\n")


def test_show_hides_redacted_values(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    def boom(**_: object) -> None:
        raise RuntimeError("the till is on fire")

    hooks.store = boom
    job_id = tasks.in_store.enqueue(store_id=stores[0], number=41).id
    run_due(process_id)
    change('UPDATE salon_jobs_job SET payload = \'{"number": 41, "api_token": "tulip"}\' WHERE id = %s', job_id)
    out, _ = run("show", str(job_id))
    assert '"number": 41' in out
    assert "tulip" not in out
    assert "attempt 1 failed at" in out
    assert out.count("RuntimeError: the till is on fire") == 1
    shown = json.loads(run("show", str(job_id), "--json")[0])
    assert shown["payload"] == {"number": 41, "api_token": "***"}
    assert [retry["attempt"] for retry in shown["retries_ahead"]] == [2, 3]
    with pytest.raises(CommandError, match="there is no job 999"):
        run("show", "999")


def test_show_names_cron_entry(database: None) -> None:
    job_id = add(tick=datetime(2026, 5, 6, tzinfo=UTC))
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', '2026-05-06Z', %s)", job_id)
    assert json.loads(run("show", str(job_id), "--json")[0])["cron_entry"] == "nightly"


def test_retries_ahead_are_spans(database: None) -> None:
    now = datetime.now(UTC)
    job = Job(task="test-store", state="queued", run_at=now, attempts=1, max_attempts=4)
    [second, third, fourth] = retries_ahead(job, now)
    backoff = tasks.in_store.backoff
    assert (second.attempt, second.earliest, second.latest) == (2, now, now)
    shortest, longest = backoff.bounds(2)
    assert (third.attempt, third.earliest, third.latest) == (3, now + shortest, now + longest)
    assert fourth.latest - fourth.earliest > third.latest - third.earliest
    assert retries_ahead(Job(state="failed", max_attempts=4), now) == []
    running = Job(task="no-such-task", state="running", run_at=now, attempts=0, max_attempts=25)
    assert [retry.attempt for retry in retries_ahead(running, now)] == list(range(2, 12))


def test_equal_failures_are_one_kind(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    def boom(number: int, **_: object) -> None:
        if number < 10:
            raise LookupError(f"no customer {number} named 'Mori{number}'")
        if number < 20:
            raise LookupError("the shelf is empty")
        raise ValueError(f"no customer {number} named 'Mori{number}'")

    hooks.store = boom
    once = tasks.in_store.using(max_attempts=1)
    ids = [once.enqueue(store_id=stores[0], number=number).id for number in (1, 2, 3, 10, 20)]
    other = tasks.outside.using(max_attempts=1).enqueue(store_id=stores[0], number=1).id
    run_due(process_id)
    kinds = failure_kinds(using="operator")
    assert [(kind.newest_id, kind.jobs, kind.task, kind.error_class) for kind in kinds] == [
        (other, 1, "test-store-outside", "builtins.LookupError"),
        (ids[4], 1, "test-store", "builtins.ValueError"),
        (ids[3], 1, "test-store", "builtins.LookupError"),
        (ids[2], 3, "test-store", "builtins.LookupError"),
    ]
    assert kinds[3].message == "no customer 3 named 'Mori3'"


def test_kind_lasts_from_first_to_last_failure(database: None) -> None:
    first, last = add(state="failed", fingerprint=7), add(state="failed", fingerprint=7)
    other = add(state="failed", fingerprint=8)
    failed_at = {first: "2026-05-06 10:00+00", last: "2026-05-06 08:00+00", other: "2026-05-06 09:00+00"}
    for job_id, at in failed_at.items():
        change("UPDATE salon_jobs_job SET finished_at = %s WHERE id = %s", at, job_id)
    kinds = [(kind.newest_id, kind.first_at, kind.last_at) for kind in failure_kinds(using="operator")]
    eight, nine, ten = (datetime(2026, 5, 6, hour, tzinfo=UTC) for hour in (8, 9, 10))
    assert kinds == [(last, eight, ten), (other, nine, nine)]


def test_jobs_of_dead_processes_are_one_kind(process_id: int) -> None:

    for _ in range(2):
        add(state="running", leased_by=process_id, lease=1, rescues=5, max_attempts=1)
    leases_of(process_id).rescue("its process died")
    [kind] = failure_kinds(using="operator")
    assert (kind.jobs, kind.error_class) == (2, "salon_jobs.core.errors.ProcessDied")


@pytest.mark.parametrize("payload", ["[" * 3000 + "]" * 3000, "[" * 300 + "]" * 300, f'{{"n": {"9" * 5000}}}'])
def test_unreadable_payload_hides_no_job(database: None, payload: str) -> None:
    store = new_store_id()
    job_id = add(payload=payload, store_id=store)
    for arguments in (("show", str(job_id)), ("show", str(job_id), "--json"), ("export-store", str(store))):
        out, _ = run(*arguments)
        assert "nested too deep" in out or "JSON that Python cannot read" in out
        assert str(job_id) in out
