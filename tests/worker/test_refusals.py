"""Shows that ends are written in statements of bounded size, and that what the server refuses fails alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from salon_jobs.core.records import JobState
from salon_jobs.jobs.leases import Leases
from tests import tasks
from tests.settings import url_for
from tests.support import change, claim, job_row, run_on_threads, running_on_a_thread, seen
from tests.tasks import Hooks
from tests.waiting import eventually
from tests.worker.effects import job_events

RESULTS = "SELECT job_id FROM salon_jobs_job_result ORDER BY job_id"
# No statement is split by its size: all are tried at once.
AT_ONCE = {"most_per_statement": 10**12}


@contextmanager
def refusing(condition: str, how: str) -> Generator[None]:
    """Have the server refuse statements that keep results under a condition."""
    change(
        f"""CREATE SEQUENCE refusals; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
            BEGIN IF {condition} THEN {how}; END IF; RETURN NULL; END $$"""
    )
    change(
        "CREATE TRIGGER refuse AFTER INSERT ON salon_jobs_job_result REFERENCING NEW TABLE AS kept"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
    )
    try:
        yield
    finally:
        change("DROP FUNCTION refuse CASCADE; DROP SEQUENCE refusals")


@pytest.fixture
def ran(hooks: Hooks) -> list[str]:
    """Record which jobs ran; one that is noted as a number returns a text of that length."""
    notes: list[str] = []

    def body(note: str) -> str:
        notes.append(note)
        return "x" * int(note) if note.isdigit() else note

    hooks.system = body
    return notes


@pytest.mark.parametrize(
    "how",
    [
        "RAISE 'string too long to represent as jsonb string' USING ERRCODE = '54000'",
        "RAISE 'out of memory' USING ERRCODE = '53200'",
        "RAISE 'invalid memory alloc request size' USING ERRCODE = 'XX000'",
        "RAISE 'nobody knows' USING ERRCODE = 'P0001'",
        "RAISE 'the public id of another result' USING ERRCODE = '23505'",
        "RAISE 'what no jsonb holds' USING ERRCODE = '22P05'",
        "PERFORM pg_terminate_backend(pg_backend_pid())",  # as after a message that is too long for the protocol
    ],
    ids=["limit", "memory", "internal", "unknown", "conflict", "data", "hangs up"],
)
def test_what_the_server_refuses_fails_alone_with_its_size(process_id: int, ran: list[str], how: str) -> None:
    kept = [tasks.kept_result.enqueue(note="300") for _ in range(3)]
    wrong = tasks.kept_result.enqueue(note="2000")
    others = [tasks.system.enqueue(note="ordinary") for _ in range(3)]
    too_much = "(SELECT sum(length(value::text)) FROM kept) > 1000"
    with refusing(too_much, how), running_on_a_thread(process_id, claim(process_id), **AT_ONCE):
        pass
    assert seen(RESULTS) == [(handle.id,) for handle in kept]
    assert [handle.result() for handle in kept] == ["x" * 300] * 3
    [error] = wrong.refresh().errors
    assert (wrong.status(), error.code) == (JobState.FAILED, "JOB.END_REFUSED")
    assert "what it did outside a transaction of its own stands" in error.message
    assert "keep its result of 2,002 bytes" in error.message
    assert [job_row(other.id) for other in others] == [None] * 3
    assert sorted(ran) == ["2000", *["300"] * 3, *["ordinary"] * 3]


@pytest.mark.parametrize(
    "sqlstate", ["25006", "53100", "57P03", "57014"], ids=["read-only", "disk full", "starting up", "timeout"]
)
def test_an_outage_is_waited_out_however_often_it_repeats(
    process_id: int, ran: list[str], caplog: pytest.LogCaptureFixture, sqlstate: str
) -> None:
    caplog.set_level("INFO")
    job = tasks.kept_result.enqueue(note="300")
    with refusing("nextval('refusals') <= 4", f"RAISE 'not now' USING ERRCODE = '{sqlstate}'"):
        run_on_threads(process_id)
    assert job.result() == "x" * 300
    assert ran == ["300"]
    assert job_events(caplog) == ["job_succeeded"]


def test_an_end_that_a_lock_holds_beyond_the_statement_timeout_is_waited_out(
    process_id: int, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(3):
        tasks.system.enqueue(note=f"ordinary {number}")
    jobs = claim(process_id)
    change("ALTER ROLE worker_runtime SET statement_timeout = '50ms'")
    try:
        with psycopg.connect(url_for(None)) as holder:
            holder.execute("LOCK TABLE salon_jobs_job IN SHARE MODE")
            end = threading.Timer(1.5, holder.rollback)
            end.start()
            with running_on_a_thread(process_id, jobs):
                pass
            end.join()
    finally:
        change("ALTER ROLE worker_runtime RESET statement_timeout")
    assert len(ran) == 3
    assert job_events(caplog) == ["job_succeeded"] * 3
    assert seen("SELECT state FROM salon_jobs_job") == []


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_process_whose_ends_wait_for_a_lock_on_the_table_is_not_stuck(
    process_id: int, ran: list[str], setting: str
) -> None:
    tasks.system.enqueue(note="ordinary")
    change(f"ALTER ROLE worker_runtime SET {setting} = '50ms'")
    try:
        with running_on_a_thread(process_id, []) as runner, psycopg.connect(url_for(None)) as holder:
            jobs = claim(process_id)
            holder.execute("LOCK TABLE salon_jobs_job IN SHARE MODE")
            runner._jobs.put(jobs)
            eventually(lambda: runner._finisher.behind_s > 1.5)
            assert runner._finisher.stuck_s < runner._finisher.behind_s - 0.5
            holder.rollback()
            assert runner._jobs.wait_idle(10)
    finally:
        change(f"ALTER ROLE worker_runtime RESET {setting}")
    assert ran == ["ordinary"]
    assert seen("SELECT state FROM salon_jobs_job") == []


def test_results_are_written_in_statements_of_bounded_size(
    process_id: int, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    really = Leases.finish_many

    def finish_many(leases: Leases, runs: Any) -> set[int]:
        sizes.append(sum(len(run.result.value) for run in runs))
        return really(leases, runs)

    monkeypatch.setattr(Leases, "finish_many", finish_many)
    for note in ("400", "400", "400", "3000", "100"):
        tasks.kept_result.enqueue(note=note)
    with running_on_a_thread(process_id, claim(process_id), most_per_statement=1000):
        pass
    assert sum(sizes) == 4300 + 5 * 2
    assert all(size <= 1000 or size == 3002 for size in sizes)
    assert len(seen(RESULTS)) == 5


def test_runs_wait_while_too_much_of_others_is_unwritten_and_a_stop_ends_the_wait(
    process_id: int, ran: list[str]
) -> None:
    for _ in range(6):
        tasks.kept_result.enqueue(note="20000")
    with psycopg.connect(url_for(None)) as holder, running_on_a_thread(process_id, [], most_kept=50_000) as runner:
        jobs = claim(process_id)
        holder.execute("LOCK TABLE salon_jobs_job_result")
        runner._jobs.put(jobs)
        eventually(lambda: len(ran), 3)
        time.sleep(0.5)
        assert len(ran) == 3, "two are kept, and the third waits on its thread"
        holder.rollback()
        assert runner._jobs.wait_idle(10)
        assert len(seen(RESULTS)) == 6
        more = [tasks.kept_result.enqueue(note="20000") for _ in range(6)]
        jobs = claim(process_id)
        holder.execute("LOCK TABLE salon_jobs_job_result")
        runner._jobs.put(jobs)
        eventually(lambda: len(ran), 9)
        runner._jobs.close()
        runner._finisher._abandon.set()
        assert runner.join(30), "no deadlock at the end"
        holder.rollback()
    assert len(ran) == 9
    assert {handle.status() for handle in more} <= {JobState.RUNNING, JobState.SUCCEEDED}
