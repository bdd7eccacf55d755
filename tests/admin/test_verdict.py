"""Makes incidents, and asks dashboard, terminal and readiness what is wrong: each names the same problems."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from io import StringIO
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from salon_jobs.core.records import StoreId
from salon_jobs.dashboard import facts
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.management.service import sentences
from salon_jobs.process.heartbeat import delete_row
from salon_jobs.process.preflight import pending_migrations
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.worker.maintenance import rescue_process
from tests import tasks
from tests.admin.pages import html_of, page_of, text_of
from tests.management.operator import add, insert, minute, problems, run
from tests.settings import url_for
from tests.support import (
    another_process,
    be_silent,
    change,
    claim,
    elsewhere,
    rescuer,
    run_due,
    seen,
    wait_until_waiting,
)
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("healthy")
NOW = timezone.now
SEE_WHOSE = "; see whose it is: python manage.py salon_jobs status"
DECLARED = "expire-tentative-reservations"
WORKER, SCHEDULER = 10**9, 10**9 + 1


@pytest.fixture
def healthy(web: None) -> None:
    """Have a worker and a scheduler that serve everything, and no counts of runs: neither here nor of other tests."""
    ended_runs.flush(using="default")
    change("DELETE FROM salon_jobs_task_minute; DELETE FROM salon_jobs_queue_minute")
    beat = {"hostname": "vm", "heartbeat_at": NOW() + timedelta(hours=1)}  # as long as the test takes
    insert("process", id=WORKER, kind="worker", pid=1, **beat)
    insert("process", id=SCHEDULER, kind="scheduler", pid=2, **beat)


def only_problem(operator: Client, kind: str, *, public_remedy: str = "") -> dict[str, Any]:
    """Return the one problem there is, once everybody names it: page, both lists in the terminal, readiness."""
    [problem] = problems()
    assert problem["kind"] == kind
    page = text_of(operator, "dashboard/")
    assert "1 problem:" in page
    assert problem["text"] in page
    assert problem["remedy"] in page
    [public] = sentences("default")
    assert public.startswith(problem["public"])
    assert public.endswith(public_remedy or problem["remedy"])
    out = StringIO()
    with pytest.raises(SystemExit, match=r"^1$"):
        call_command("salon_jobs", "status", stdout=out)
    [sentence] = out.getvalue().splitlines()
    assert sentence.startswith(problem["text"])
    assert sentence.endswith(problem["remedy"])
    assert sentence in run("top", "--once")[0]
    return problem


def test_nobody_names_problem_without_one(operator: Client) -> None:
    assert problems() == []
    assert sentences("default") == []
    assert run("status")[0].strip() == "No problems: workers run, and nothing waits for an operator."
    assert "No problems: workers run" in text_of(operator, "dashboard/")


def test_no_scheduler(operator: Client) -> None:
    """It is a problem before any tick is late, and then since the first that did not fire."""
    change("DELETE FROM salon_jobs_process WHERE kind = 'scheduler'")
    assert only_problem(operator, "no-scheduler")["since"] is None
    insert("cron_entry", name=DECLARED, registered_at=NOW() - timedelta(hours=3))
    assert only_problem(operator, "no-scheduler")["since"] is not None
    insert("process", id=SCHEDULER + 1, kind="scheduler", hostname="vm", pid=3, heartbeat_at=NOW() - timedelta(hours=1))
    assert [each["kind"] for each in problems()] == ["silent", "no-scheduler"]


def test_keys_of_problem(operator: Client) -> None:
    """Scripts read these keys; the public text is there, too, where it is the same."""
    change("DELETE FROM salon_jobs_process WHERE kind = 'scheduler'")
    found = only_problem(operator, "no-scheduler")
    assert found.keys() == {"kind", "text", "since", "remedy", "public"}
    assert found["public"] == found["text"]


def test_no_scheduler_for_paused_entries() -> None:
    """What a person paused waits for no scheduler."""
    change("DELETE FROM salon_jobs_process WHERE kind = 'scheduler'")
    for entry in cron_entries.all():
        insert("cron_entry", name=entry.name, paused_at=NOW())
    assert problems() == []


def test_late_cron_entry(operator: Client) -> None:
    """What a person paused is not late."""
    insert("cron_entry", name=DECLARED, registered_at=NOW() - timedelta(hours=3))
    assert DECLARED in only_problem(operator, "cron-late")["text"]
    change("UPDATE salon_jobs_cron_entry SET paused_at = now()")
    assert problems() == []


def test_time_is_that_of_database() -> None:
    """What is late, and since when, does not depend on the clock of the host that asks."""
    [(before,)] = seen("SELECT clock_timestamp()")
    read = facts.Facts(using="operator")
    [(between,)] = seen("SELECT clock_timestamp()")
    assert before < between < read.at


def test_late_schedules(operator: Client) -> None:
    due = {"task": "test-system", "payload": "{}", "line": "* * * * *", "catch_up": "5 min", "jitter": "0"}
    insert("schedule", key="soon", next_at=NOW() + timedelta(hours=1), **due)
    assert problems() == []
    insert("schedule", key="late", next_at=NOW() - timedelta(minutes=2), **due)
    assert only_problem(operator, "schedules-late")["text"] == "1 schedule is late"
    change("DELETE FROM salon_jobs_process WHERE kind = 'scheduler'")
    only_problem(operator, "no-scheduler")


def die(*, running: list[int] | None = None) -> None:
    """Have a worker claim what is due and die; ``running``: the jobs that it ran, None: unknown."""
    process = another_process()
    claim(process)
    rescue_process(process, None, using="default", end="was killed by SIGKILL", charged=running)


def test_processes_that_die(operator: Client) -> None:
    """The job that most of them ran is named and linked, whatever else fails; it is no problem once it is long ago."""
    killer, other = (add(task="test-system") for _ in range(2))
    die(running=[killer])
    assert only_problem(operator, "processes-died")["text"] == f"1 process died with job {killer}, test-system"
    die(running=[killer, other])
    die()
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class)"
        " SELECT %s, 1, 'builtins.KeyError' FROM generate_series(1, 2500)",
        other,
    )
    die(running=[])
    found = only_problem(operator, "processes-died")
    assert found["text"] == f"4 processes died, 3 with job {killer}, test-system"
    assert found["remedy"] == f"see why, then cancel it or mend its task: python manage.py salon_jobs show {killer}"
    assert f"job/{killer}/change/" in html_of(operator, "dashboard/")
    change("UPDATE salon_jobs_ended_process SET ended_at = now() - interval '16 minutes'")
    assert problems() == []


def test_processes_that_die_until_job_fails() -> None:
    """Then it is not to be cancelled any more."""
    killer = add(task="test-system")
    for _ in range(5):
        die(running=[killer])
    [died, failed] = problems()
    assert died["remedy"].startswith("see why, and mend its task before it is retried: ")
    assert failed["kind"] == "jobs-failed"


def test_processes_that_die_with_either_job(operator: Client) -> None:
    """Of two jobs that ran in as many, none is blamed more than the other."""
    first, second = (add(task="test-system") for _ in range(2))
    for _ in range(3):
        die(running=[first, second])
    die(running=[])
    found = only_problem(operator, "processes-died")
    assert found["text"] == f"4 processes died, 3 with each of the jobs {first}, {second}"
    assert "log" in found["remedy"]


def test_process_that_comes_back_has_not_died() -> None:
    """It was only silent, as one whose host was asleep."""
    process = another_process()
    be_silent(process, 300)
    assert rescuer().run_once().processes == 1
    assert [problem["kind"] for problem in problems()] == ["processes-died"]
    insert("process", id=process, kind="worker", hostname="test", pid=2)
    assert problems() == []


def test_processes_that_die_without_job(operator: Client) -> None:
    """The remedy names them: their logs say why. A job that is gone is no page to look at."""
    die()
    die()
    found = only_problem(operator, "processes-died")
    assert found["text"] == "2 processes died"
    assert found["remedy"].endswith(": worker test/2, worker test/2")
    gone = add(task="test-system")
    die()
    change("DELETE FROM salon_jobs_job")
    found = only_problem(operator, "processes-died")
    assert found["text"] == f"3 processes died, 1 with job {gone}"
    assert "show" not in found["remedy"]


def test_ends_in_order() -> None:
    """A process that ended by itself has not died; of each kind the last end is kept, and those of 15 minutes."""
    workers = [another_process() for _ in range(3)]
    for process in workers:
        delete_row(process, using="default")
    assert problems() == []
    ends = "SELECT id, died FROM salon_jobs_ended_process ORDER BY id"
    assert seen(ends) == [(process, False) for process in workers]
    change("UPDATE salon_jobs_ended_process SET ended_at = now() - interval '1 day' - id * interval '1 ms'")
    delete_row(SCHEDULER, using="default")
    assert seen(ends) == [(workers[0], False), (SCHEDULER, False)]


def test_no_worker_since_last_one(operator: Client) -> None:
    """Since the last worker ended, or sent its last heartbeat, however long the oldest job has been due."""
    change("DELETE FROM salon_jobs_process WHERE kind = 'worker'")
    add(task="test-system", run_at=NOW() - timedelta(hours=9))
    assert only_problem(operator, "no-worker")["since"] is None, "there was none, as far as is known"
    [(before,)] = seen("SELECT clock_timestamp()")
    delete_row(another_process(), using="default")
    [(after,)] = seen("SELECT clock_timestamp()")
    assert before < datetime.fromisoformat(only_problem(operator, "no-worker")["since"]) < after
    silent = another_process()
    be_silent(silent, 7200)
    assert rescuer().run_once().processes == 1
    [(ended_at,)] = seen("SELECT ended_at FROM salon_jobs_ended_process WHERE id = %s", silent)
    assert ended_at < before - timedelta(hours=1), "its last heartbeat, not when it was found to be dead"


def test_process_that_was_only_silent() -> None:
    """One that registers again after others took it for dead has not died when it ends."""
    silent = another_process()
    be_silent(silent, 70)
    assert rescuer().run_once().processes == 1
    assert [each["kind"] for each in problems()] == ["processes-died"]
    insert("process", id=silent, kind="worker", hostname="test", pid=2)
    delete_row(another_process(), using="default")  # the statement would forget the older end, and notes it anew
    change(
        "UPDATE salon_jobs_ended_process SET ended_at = now() - CASE id WHEN %s THEN 20 ELSE 19 END * interval '1 min'",
        silent,
    )
    delete_row(silent, using="default")
    assert seen(
        "SELECT died, jobs, ended_at > now() - interval '15 min' FROM salon_jobs_ended_process WHERE id = %s", silent
    ) == [(False, "[]", True)]
    assert problems() == []


def test_scheduler_that_restarts(operator: Client) -> None:
    """For a minute another may take over, unless a tick is late already."""
    delete_row(SCHEDULER, using="default")
    assert problems() == []
    change("UPDATE salon_jobs_ended_process SET ended_at = now() - interval '61 s'")
    assert only_problem(operator, "no-scheduler")["since"] is not None
    change("UPDATE salon_jobs_ended_process SET ended_at = now()")
    insert("cron_entry", name=DECLARED, registered_at=NOW() - timedelta(hours=3))
    only_problem(operator, "no-scheduler")


def test_open_transaction(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions that wait for it are counted; the time since when shows what the role may see."""
    job_id = add(task="test-system", run_at=NOW() + timedelta(hours=1))
    monkeypatch.setattr(facts, "OPEN_FOR", timedelta(0))
    held = "SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE"
    with psycopg.connect(url_for(None), application_name="psql") as holder, ThreadPoolExecutor(1) as pool:
        holder.execute(held, [job_id])
        waiter = elsewhere(pool, lambda: seen(held, job_id))
        wait_until_waiting()
        found = only_problem(operator, "transaction-open")
        pid = holder.info.backend_pid
        assert f"session {pid} (psql, " in found["text"]
        assert found["public"] == f"session {pid} has had a transaction open", "no names of users"
        assert "1 session waits for it" in found["text"]
        assert f"pg_terminate_backend({pid})" in found["remedy"]
        assert f'<a id="problem-transaction-open-{pid}" href="#processes">' in page_of(operator, "dashboard/")
        holder.rollback()
        assert waiter.result(LIMIT_S) == [()]
    assert problems() == []


def test_open_transaction_behind_chain(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the one before it; the problem is the session at the front, for which all wait."""
    rows = [add(task="test-system", run_at=NOW() + timedelta(hours=1)) for _ in range(3)]
    monkeypatch.setattr(facts, "OPEN_FOR", timedelta(0))
    held = "SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE"
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(psycopg.connect(url_for(None), application_name=name)) for name in "abc"
        )
        for session, row in zip((first, second, third), rows, strict=True):
            session.execute(held, [row])
        pool = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(second.rollback)
        for waiter, row in ((second, rows[0]), (third, rows[1])):
            pool.submit(waiter.execute, held, [row])
        stack.callback(first.rollback)  # whatever happens, they end
        wait_until_waiting(2)
        found = only_problem(operator, "transaction-open")
        assert f"session {first.info.backend_pid} (a, " in found["text"]
        assert "2 sessions wait for it" in found["text"]


def test_open_transaction_that_blocks_nobody(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role sees its own sessions: since when they are open, and on which of our tables they hold locks."""
    monkeypatch.setattr(facts, "OPEN_FOR", timedelta(0))
    add(task="test-system", run_at=NOW() + timedelta(hours=1))
    with psycopg.connect(url_for("jobs_operator"), application_name="psql") as holder:
        holder.execute("SELECT FROM salon_jobs_job FOR UPDATE")
        [found] = problems()
        assert "psql, jobs_operator, idle in transaction) has had a transaction open, with locks" in found["text"]
        assert found["text"].endswith("on salon_jobs_job")
        assert "pg_terminate_backend" in found["remedy"]
        assert found["since"] is not None
        assert found["text"] in text_of(operator, "dashboard/")
        holder.rollback()
    assert problems() == []
    with psycopg.connect(url_for("jobs_operator"), application_name="salon_jobs/5") as running:
        running.execute("SELECT FROM salon_jobs_job")
        assert problems() == [], "that of a running job"


def test_long_read_is_not_to_be_ended(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump or a report holds up nobody, so nobody is told to end it."""
    monkeypatch.setattr(facts, "OPEN_FOR", timedelta(0))
    with psycopg.connect(url_for("jobs_operator"), application_name="pg_dump") as reader:
        reader.execute("SELECT FROM salon_jobs_job")
        [found] = problems()  # the worker may not see since when it is open
        assert found["text"] in text_of(operator, "dashboard/")
        assert found["text"].endswith("has had a transaction open, which holds up nobody")
        assert "let it finish" in found["remedy"]
        assert "pg_terminate_backend" not in found["remedy"]


@pytest.mark.process
@pytest.mark.usefixtures("preparing")
def test_prepared_transaction(preparing: str, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session holds its locks. Who waits for it is not told to be ended, however long that takes."""
    job_id = add(task="test-system", run_at=NOW() + timedelta(hours=1))
    monkeypatch.setattr(facts, "OPEN_FOR", timedelta(0))
    held = "SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE"
    with psycopg.connect(preparing) as session:
        session.execute(held, [job_id])
        session.execute("PREPARE TRANSACTION 'ann''s'")
    ending = psycopg.connect(preparing, autocommit=True)
    with ThreadPoolExecutor(1) as pool, ending:
        try:
            found = only_problem(operator, "transaction-prepared", public_remedy=SEE_WHOSE)
            assert found["text"].startswith("transaction 'ann''s' of ")
            assert found["remedy"].endswith("ROLLBACK PREPARED 'ann''s'")
            assert found["text"].endswith("was prepared and has not ended, with locks on salon_jobs_job")
            assert found["public"] == "a transaction was prepared and has not ended"
            with psycopg.connect(preparing) as session:
                session.execute("SELECT pg_current_xact_id()")
                session.execute("PREPARE TRANSACTION 'other'")
            links = re.findall('id="(problem-transaction-prepared-[^"]*)"', html_of(operator, "dashboard/"))
            assert len(set(links)) == 2
            ending.execute("ROLLBACK PREPARED 'other'")
            waiter = elsewhere(pool, lambda: seen(held, job_id))
            wait_until_waiting()
            found = only_problem(operator, "transaction-prepared", public_remedy=SEE_WHOSE)
            assert found["text"].endswith("and has not ended, and 1 session waits for it")
        finally:
            ending.execute("ROLLBACK PREPARED 'ann''s'")
        assert waiter.result(LIMIT_S) == [()]
    assert problems() == []


def test_late_queue(operator: Client, stores: list[StoreId]) -> None:
    """It names the queue and the store with the most of its own jobs; a setting says what is late."""
    late, later = NOW() - timedelta(minutes=10), NOW() + timedelta(hours=1)
    add(task="test-store", queue="mail", store_id=stores[0], run_at=late)
    for number in range(3):
        add(task="test-store", queue="other", store_id=stores[1], run_at=later if number else NOW())
    found = only_problem(operator, "queue-late")
    assert found["text"] == "queue mail is late: 1 due job, in store Salon 0"
    assert found["public"] == "queue mail is late: 1 due job"
    assert datetime.fromisoformat(found["since"]) - late < timedelta(seconds=LIMIT_S)
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "LATE_AFTER": 3600}):
        assert problems() == []
    for _ in range(2):
        add(task="test-system", queue="mail", run_at=late)
    assert only_problem(operator, "queue-late")["text"] == "queue mail is late: 3 due jobs"


def test_names_are_quoted_for_shell(operator: Client) -> None:
    """A queue may have any name, and the remedy is pasted into a shell."""
    change("UPDATE salon_jobs_process SET queues = '[\"!a; b\"]' WHERE kind = 'worker'")
    add(task="test-system", queue="a; b")
    assert only_problem(operator, "queue-unserved")["remedy"].endswith(" runworker --queue 'a; b'")
    change("UPDATE salon_jobs_job SET queue = 'default'")
    change("INSERT INTO salon_jobs_job (task, run_at) VALUES ('no such', now() - interval '1 minute')")
    found = only_problem(operator, "task-undeclared")
    assert found["remedy"].endswith(" cancel --task 'no such'")
    [(run_at,)] = seen("SELECT run_at FROM salon_jobs_job WHERE task = 'no such'")
    assert abs(datetime.fromisoformat(found["since"]) - run_at) < timedelta(seconds=LIMIT_S)


@contextmanager
def unapplied(which: str) -> Generator[list[str]]:
    """Have the migrations of these names pending, as a condition in SQL; their names."""
    names = [name for (name,) in seen(f"SELECT name FROM django_migrations WHERE app = 'salon_jobs' AND {which}")]
    change("UPDATE django_migrations SET app = 'away' WHERE app = 'salon_jobs' AND name = ANY (%s)", names)
    yield names
    change("UPDATE django_migrations SET app = 'salon_jobs' WHERE app = 'away'")


@pytest.fixture
def pending(database: None) -> Iterator[str]:
    """Have the newest migration pending; its name."""
    with unapplied("name = (SELECT max(name) FROM django_migrations WHERE app = 'salon_jobs')") as [name]:
        yield f"salon_jobs.{name}"


@pytest.fixture
def without_ends(database: None) -> Iterator[None]:
    """Have the migration pending that creates the table of ended processes, and those after it."""
    with unapplied("name >= '0011_ended_processes'"):
        change("ALTER TABLE salon_jobs_ended_process RENAME TO later")
        yield
        change("ALTER TABLE later RENAME TO salon_jobs_ended_process")


def test_workers_wait_for_migrations(operator: Client, pending: str) -> None:
    change("DELETE FROM salon_jobs_process WHERE kind = 'worker'")
    found = only_problem(operator, "migrations-pending")
    assert found["text"] == f"workers wait for 1 pending migration: {pending}"
    assert found["remedy"] == "run: python manage.py migrate"


def test_migrations_beside_living_workers(operator: Client, pending: str) -> None:
    """Workers of the release before need none of them, so it is the least of the problems."""
    assert only_problem(operator, "migrations-pending")["text"] == f"1 migration is pending: {pending}"
    add(task="test-system", state="failed")
    assert [each["kind"] for each in problems()] == ["jobs-failed", "migrations-pending"]


def test_ends_are_not_read_before_their_migration(operator: Client, without_ends: None) -> None:
    assert "salon_jobs.0011_ended_processes" in only_problem(operator, "migrations-pending")["text"]


def test_pending_migrations_are_one_query() -> None:
    """Every look asks for them, and none reads the files of all apps again."""
    pending_migrations("operator")
    with CaptureQueriesContext(connections["operator"]) as asked:
        assert pending_migrations("operator") == []
    assert len(asked) == 1


def test_tables_made_without_migrations() -> None:
    """As in a test database whose migrations are off: nothing has noted what was applied. It ends no transaction."""
    change("ALTER TABLE django_migrations RENAME TO away")
    try:
        with transaction.atomic(using="operator"):
            assert [each["kind"] for each in problems()] == ["migrations-pending"]
    finally:
        change("ALTER TABLE away RENAME TO django_migrations")


def test_failed_jobs_by_group(operator: Client) -> None:
    """The largest group is named, with the error and since when; others are counted."""
    failed = {"task": "sync-inventory", "state": "failed", "error_class": "builtins.KeyError"}
    jobs = [add(**failed, fingerprint=7) for _ in range(3)]
    insert("job_error", job_id=jobs[-1], attempt=1, error_class="builtins.KeyError", message="'qty'\nmore")
    found = only_problem(operator, "jobs-failed")
    assert found["text"] == "3 failed jobs: 3 × KeyError 'qty' in sync-inventory"
    assert found["public"] == "3 failed jobs: 3 × KeyError in sync-inventory"
    assert found["since"] is not None
    assert "fingerprint=7" in html_of(operator, "dashboard/")
    add(**{**failed, "task": "charge"}, fingerprint=8)
    assert only_problem(operator, "jobs-failed")["text"].endswith("in sync-inventory, and 1 other")


def test_failed_jobs_beyond_count() -> None:
    """A group is counted up to a bound; what is beyond it is not said to be other jobs."""
    failed = {"task": "sync-inventory", "state": "failed", "error_class": "builtins.KeyError"}
    for _ in range(1002):
        add(**failed, fingerprint=7)
    assert [each["text"] for each in problems()] == ["1,002 failed jobs: 1,000+ × KeyError in sync-inventory"]
    add(**{**failed, "task": "charge"}, fingerprint=8)
    [found] = problems()
    assert found["text"] == "1,003 failed jobs: 1,000+ × KeyError in sync-inventory, and others"


def test_task_that_only_fails(operator: Client) -> None:
    """As when a provider is down, for as long as jobs wait to be tried again, however rarely."""
    later = NOW() + timedelta(hours=1)
    minute("charge", 300, succeeded=5)
    minute("charge", 240, retried=40)
    minute("charge", 100, retried=1, failed=1)
    minute("mail", 1, retried=40, succeeded=1)
    minute("rare", 1, retried=2)
    minute("cancelled", 1, retried=3)
    for task in ("charge", "mail", "rare"):
        add(task=task, attempts=2, run_at=later)
    add(task="cancelled", run_at=later)
    found = only_problem(operator, "task-failing")
    assert found["text"] == "all 42 runs of charge have failed, and its jobs are tried again"
    since = datetime.fromisoformat(found["since"])
    assert timedelta(minutes=239) < NOW() - since < timedelta(minutes=242)
    insert("limit", kind="task", name="charge", paused=True)
    assert problems() == [], "somebody has done what the remedy says"
    change("DELETE FROM salon_jobs_limit")
    minute("charge", 0, succeeded=1)
    assert problems() == []


def test_task_that_fails_again_and_again(operator: Client, process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs, counted by the worker; the problem is over when their job is, or a run succeeds."""
    refused = Mock(side_effect=ConnectionError("refused"))
    monkeypatch.setattr(tasks.hooks, "system", refused)
    job = tasks.keyed_system.enqueue(note="charge").id
    for _ in range(3):
        assert problems() == []
        change("UPDATE salon_jobs_job SET run_at = now()")
        run_due(process_id)
        ended_runs.flush(using="default")
    assert refused.call_count == 3
    assert only_problem(operator, "task-failing")["text"].startswith(f"all 3 runs of {tasks.keyed_system.name} have")
    change("UPDATE salon_jobs_job SET state = 'cancelled', finished_at = now() WHERE id = %s", job)
    assert problems() == []
    change("UPDATE salon_jobs_job SET state = 'queued', finished_at = NULL, run_at = now() WHERE id = %s", job)
    only_problem(operator, "task-failing")
    refused.side_effect = None
    run_due(process_id)
    ended_runs.flush(using="default")
    assert problems() == []
