"""Successes are written in batches of bounded size; what the server refuses fails alone, what it holds up waits."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection

from salon_jobs import Snooze
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.db.statements import is_lock_conflict
from salon_jobs.jobs import control
from salon_jobs.jobs.leases import Leases
from salon_jobs.process.heartbeat import application_name
from salon_jobs.signals import job_finished
from salon_jobs.worker import finisher
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.ends import report_successes
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from tests import tasks
from tests.core.log_lines import only_handler, without_time
from tests.settings import TEST_DATABASE, url_for
from tests.support import another_process, be_silent, change, chunk_of, connected, job_row, rescuer, running_job, seen
from tests.tasks import Hooks, Sale
from tests.waiting import LIMIT_S, eventually
from tests.worker.ends import RETURNS
from tests.worker.work import Work, errors, states

RESULTS = "SELECT job_id FROM salon_jobs_job_result ORDER BY job_id"


# Batches


def test_lost_lease_in_batch_is_logged(work: Work) -> None:
    def lose(note: str) -> None:
        if note == "lose":
            change("UPDATE salon_jobs_job SET lease = 5 WHERE payload->>'note' = 'lose'")

    for note in ("a", "lose", "b"):
        work.add(lose, tasks.system, note=note)
    work.run_on_thread()
    assert seen("SELECT payload->>'note', state FROM salon_jobs_job") == [("lose", "running")]
    assert sorted(work.events) == ["job_lease_lost", "job_succeeded", "job_succeeded"]


def test_locked_row_delays_no_other_end(work: Work, other: psycopg.Connection) -> None:
    """It stays, in its batch and in a later one, and no session keeps the limit of the wait for it."""
    for _ in range(6):
        work.add(None, tasks.system)
    held, *free = work.claim(6)
    leases = Leases(work.process_id, using="default")

    def finish(*jobs: ClaimedJob) -> set[int]:
        return leases.finish_many([running_job(job, work.process_id) for job in jobs])

    other.execute("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", [held.id])
    assert finish(free[0], held, free[1]) == {free[0].fence, free[1].fence}
    assert finish(held, free[2], free[3]) == {free[2].fence, free[3].fence}
    other.rollback()
    assert finish(free[4], held) == {free[4].fence, held.fence}
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_batch_after_lost_connection(work: Work) -> None:
    """The finisher's connection is ended after its first batch; the second one is written on a new one."""
    ended: list[Any] = []

    def end_the_finisher(note: str) -> None:
        if note == "second":
            statement = (
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE query LIKE '%%DELETE FROM salon_jobs_job%%' AND pid <> pg_backend_pid()"
                " AND datname = current_database()"
            )
            ended.append(seen(statement))

    with work.on_thread() as runner:
        for note in ("first", "second"):
            work.add(end_the_finisher, tasks.system, note=note)
            runner.end_all(work.claim())
    assert len(ended) == 1
    assert states() == []
    assert work.events == ["job_succeeded", "job_succeeded"]


def test_transaction_left_by_receiver_holds_no_end(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch after it, of the same round or of the last one, is not in that transaction, which never commits."""

    def begin(**_: Any) -> None:
        connection.cursor().execute("BEGIN")

    monkeypatch.setattr(finisher, "_BATCH", 1)
    for _ in range(3):
        work.add(None, tasks.system)
    runs = [running_job(job, work.process_id) for job in work.claim()]
    loop = Finisher(work.leases, JobBuffer(1), threading.Event())
    with connected(job_finished, begin):
        for running in runs[:2]:
            loop.end(running, Succeeded(finished=False))
        loop.poll()
        loop.end(runs[2], Succeeded(finished=False))
        assert loop.finish()
    connection.close()
    assert states() == []


def test_finisher_survives_unforeseen_error(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    really = Leases.finish_many
    faults = [RuntimeError()]

    def fail_once(*arguments: Any) -> set[int]:
        if faults:
            raise faults.pop()
        return really(*arguments)

    monkeypatch.setattr(Leases, "finish_many", fail_once)
    ids = []
    with work.on_thread() as runner:
        for _ in range(2):
            ids.append(work.add(None, tasks.system))
            runner.end_all(work.claim())
    assert "1 jobs could not be written" in work.log.text
    assert [job_id for job_id, _ in work.leases.other_leases(())] == ids[:1], "a sweep gives it back"


def test_log_line_of_success(work: Work) -> None:
    """It says how long the run took, of which chunk it was, and its trace."""
    tasks.in_chunks.enqueue_many([tasks.in_chunks.call(work.stores[0], Sale(number)) for number in range(2)])
    work.add(None, tasks.system)
    *of_chunk, job = sorted(work.claim(), key=attrgetter("id"))
    chunk = chunk_of(of_chunk, work.process_id)
    plain, traced = running_job(job, work.process_id), running_job(job, work.process_id)
    traced.start_trace().trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    for running in (plain, traced, *chunk.runs):
        running.ended = running.started + 0.125
    with only_handler() as stream:
        report_successes([plain, traced, *chunk.runs])
        lines = without_time(stream.getvalue())
    assert [line.get("trace_id") for line in lines] == [None, "4bf92f3577b34da6a3ce929d0e0e4736", None, None]
    assert [line["duration_ms"] for line in lines] == [125.0, 125.0, 62.5, 62.5]
    assert [line.get("chunk") for line in lines] == [None, None, 2, 2]
    said = {"level": "info", "logger": "salon_jobs", "event": "job_succeeded", "queue": "default", "duration_ms": 125.0}
    assert lines[0] == {**said, "task_name": "test-system", "job_id": job.id, "attempt": 1}


# What the server refuses


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
def test_refused_result_fails_alone(work: Work, ran: list[str], how: str) -> None:
    """Its error says how large it is."""
    kept = [tasks.kept_result.enqueue(note="300") for _ in range(3)]
    wrong = tasks.kept_result.enqueue(note="2000")
    others = [work.add(None, tasks.system, note="ordinary") for _ in range(3)]
    too_much = "(SELECT sum(length(value::text)) FROM kept) > 1000"
    # No statement is split by its size: all are tried at once.
    with refusing(too_much, how), work.on_thread(most_per_statement=10**12):
        pass
    assert seen(RESULTS) == [(handle.id,) for handle in kept]
    assert [handle.result() for handle in kept] == ["x" * 300] * 3
    [error] = wrong.refresh().errors
    assert (wrong.status(), error.code) == (JobState.FAILED, "JOB.END_REFUSED")
    assert "what it did outside a transaction of its own stands" in error.message
    assert "keep its result of 2,002 bytes" in error.message
    assert [job_row(other) for other in others] == [None] * 3
    assert sorted(ran) == ["2000", *["300"] * 3, *["ordinary"] * 3]


@pytest.mark.parametrize(
    "sqlstate", ["25006", "53100", "57P03", "57014"], ids=["read-only", "disk full", "starting up", "timeout"]
)
def test_repeated_outage_is_waited_out(work: Work, ran: list[str], sqlstate: str) -> None:
    job = tasks.kept_result.enqueue(note="300")
    with refusing("nextval('refusals') <= 4", f"RAISE 'not now' USING ERRCODE = '{sqlstate}'"):
        work.run_on_thread()
    assert job.result() == "x" * 300
    assert (ran, work.events) == (["300"], ["job_succeeded"])


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    """Return a connection with an open transaction that never ends by itself."""
    with psycopg.connect(url_for(None)) as connection:
        yield connection


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_locked_table_is_waited_out(work: Work, ran: list[str], other: psycopg.Connection, setting: str) -> None:
    """A lock that lasts longer than the timeouts of statements does not make the process look stuck."""
    role = f"ALTER ROLE worker_runtime IN DATABASE {TEST_DATABASE}"
    change(f"{role} SET {setting} = '50ms'")
    try:
        with work.on_thread() as runner:
            for number in range(3):
                work.add(None, tasks.system, note=f"ordinary {number}")
            jobs = work.claim()
            other.execute("LOCK TABLE salon_jobs_job IN SHARE MODE")
            runner.jobs.put(jobs)
            finisher = runner.finisher
            eventually(lambda: finisher.behind_s > 1.5 and finisher.stuck_s < finisher.behind_s - 0.5)
            other.rollback()
            assert runner.jobs.wait_until_empty(LIMIT_S)
    finally:
        change(f"{role} RESET {setting}")
    assert len(ran) == 3
    assert (states(), work.events) == ([], ["job_succeeded"] * 3)


def test_statements_have_bounded_size(work: Work, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    really = Leases.finish_many

    def finish_many(leases: Leases, runs: Any) -> set[int]:
        sizes.append(sum(len(run.result.value) for run in runs))
        return really(leases, runs)

    monkeypatch.setattr(Leases, "finish_many", finish_many)
    for note in ("400", "400", "400", "3000", "100"):
        tasks.kept_result.enqueue(note=note)
    with work.on_thread(most_per_statement=1000):
        pass
    assert sum(sizes) == 4300 + 5 * 2
    assert all(size <= 1000 or size == 3002 for size in sizes)
    assert len(seen(RESULTS)) == 5


class Abandon(threading.Event):
    """Counts how often somebody looked whether to give up."""

    looks = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        return super().wait(timeout)


def test_runs_wait_while_results_are_unwritten(work: Work, ran: list[str], other: psycopg.Connection) -> None:
    """Two are kept, and the third waits on its thread; a stop ends the wait."""
    abandon = Abandon()
    with work.on_thread(most_kept=50_000, abandon=abandon) as runner:

        def fill() -> list[Any]:
            handles = [tasks.kept_result.enqueue(note="20000") for _ in range(6)]
            jobs, before = work.claim(), len(ran)
            other.execute("LOCK TABLE salon_jobs_job_result")
            runner.jobs.put(jobs)
            eventually(lambda: len(ran), before + 3)
            return handles

        fill()
        looks = abandon.looks
        eventually(lambda: abandon.looks > looks + 3)
        assert len(ran) == 3
        other.rollback()
        assert runner.jobs.wait_until_empty(LIMIT_S)
        assert len(seen(RESULTS)) == 6
        more = fill()
        runner.jobs.close()
        abandon.set()
        assert runner.join(LIMIT_S), "no deadlock at the end"
        other.rollback()
    assert len(ran) == 9
    assert {handle.status() for handle in more} <= {JobState.RUNNING, JobState.SUCCEEDED}


# What another transaction holds up: a job waits by itself, all others end and are queued again


def hold_keys(other: psycopg.Connection, store: UUID, *numbers: int) -> None:
    """Add jobs under these keys, and do not commit."""
    with other.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO salon_jobs_job (task, store_id, job_key, run_at)"
            " VALUES ('test-keyed', %s, %s, now() + interval '1 h')",
            [(store, f"k:{number}") for number in numbers],
        )


def ends() -> list[tuple[Any, ...]]:
    return seen("SELECT state, count(*) FROM salon_jobs_job GROUP BY state ORDER BY state")


def rescued(process_id: int) -> RescueCounts:
    return rescue_process(process_id, None, using="default")


@pytest.mark.parametrize(("end", "ended"), [("commit", ("cancelled", "superseded")), ("rollback", ("queued", ""))])
def test_rescue_leaves_job_with_held_key(
    work: Work, other: psycopg.Connection, end: str, ended: tuple[str, str]
) -> None:
    """It is queued again, or superseded, when the holder ends."""
    held = work.add(None, tasks.keyed, number=0)
    for number in range(1, 6):
        work.add(None, tasks.keyed, number=number)
        work.add()
    work.claim()
    hold_keys(other, work.stores[0], 0)
    assert rescued(work.process_id) == RescueCounts(processes=1, queued=10)
    assert ends() == [("queued", 10), ("running", 1)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)], "the burial is not rolled back"
    [logged] = work.fields("process_dead")
    assert (logged["jobs"], logged["held_up"]) == (10, 1)
    for _ in range(3):
        assert rescuer().run_once() == RescueCounts()
    assert len(work.fields("process_dead")) == 1, "once, not with every sweep"
    getattr(other, end)()
    assert rescuer().run_once().processes == 1
    assert seen("SELECT state, reason FROM salon_jobs_job WHERE id = %s", held) == [ended]


def test_rescue_leaves_locked_rows(work: Work, other: psycopg.Connection) -> None:
    ids = [work.add() for _ in range(10)]
    work.claim()
    other.execute("SELECT FROM salon_jobs_job WHERE id = ANY (%s) FOR UPDATE", [ids[:3]])
    assert rescued(work.process_id) == RescueCounts(processes=1, queued=7)
    other.rollback()
    assert rescuer().run_once() == RescueCounts(processes=1, queued=3)


def test_rescue_among_hundreds_of_held_keys(work: Work, other: psycopg.Connection) -> None:
    for store in work.stores[:2]:
        tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store, number=n) for n in range(400)])
    assert len(work.claim(800)) == 800
    hold_keys(other, work.stores[0], *range(0, 400, 2))
    sweeper, queued = rescuer(), rescued(work.process_id).queued
    # On a busy machine the search for those that are held up can reach its end of a second before all are seen.
    while queued < 600:
        queued += sweeper.run_once().queued
    assert ends() == [("queued", 600), ("running", 200)]
    other.rollback()
    assert sweeper.run_once() == RescueCounts(processes=1, queued=200)


def test_held_jobs_hide_no_other_owner(work: Work, other: psycopg.Connection) -> None:
    work.claim_one(None, tasks.keyed, number=1)
    work.add()
    Work(another_process(), work.stores, work.hooks, work.log).claim()
    change("DELETE FROM salon_jobs_process")
    hold_keys(other, work.stores[0], 1)
    assert rescuer().run_once() == RescueCounts(processes=1, queued=1)
    assert seen("SELECT leased_by FROM salon_jobs_job WHERE state = 'running'") == [(work.process_id,)]


def test_rescue_ends_hanging_claim(process_id: int) -> None:
    """As when the host is gone in the midst of an answer: the backend waits for a client that never reads."""
    zombie = psycopg.connect(url_for("worker_runtime"), application_name=application_name(process_id))
    zombie.execute("SELECT FROM salon_jobs_process WHERE id = %s FOR KEY SHARE", [process_id])
    be_silent(process_id)
    assert rescuer().run_once() == RescueCounts(processes=1)
    with pytest.raises(psycopg.OperationalError):
        zombie.execute("SELECT")
    zombie.close()


def test_held_process_row_delays_no_other(work: Work, other: psycopg.Connection) -> None:
    work.claim_one()
    held = another_process()
    for process in (work.process_id, held):
        be_silent(process)
    other.execute("SELECT FROM salon_jobs_process WHERE id = %s FOR UPDATE", [held])
    sweeper = rescuer()
    assert sweeper.run_once() == RescueCounts(processes=1, queued=1)
    assert sweeper.run_once() == RescueCounts()
    assert [fields["process_id"] for fields in work.fields("rescue_held_up")] == [held]
    other.rollback()
    assert sweeper.run_once() == RescueCounts(processes=1)


def test_give_back_waits_for_no_key(work: Work, other: psycopg.Connection) -> None:
    for number in range(10):
        work.add(None, tasks.keyed, number=number)
    jobs = work.claim()
    hold_keys(other, work.stores[0], 4, 7)
    given_back = work.leases.give_back([(job.id, job.lease) for job in jobs])
    assert {job.id for job in given_back} == {jobs[n].id for n in range(10) if n not in (4, 7)}
    assert ends() == [("queued", 8), ("running", 2)]


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_held_up_end_changes_nothing(work: Work, other: psycopg.Connection, verb: str) -> None:
    job = work.claim_one(None, tasks.keyed, number=1)
    hold_keys(other, work.stores[0], 1)
    with pytest.raises(OperationalError) as raised:
        RETURNS[verb](job, work.process_id)
    assert is_lock_conflict(raised.value)
    assert (ends(), errors()) == ([("running", 1)], [])


@pytest.mark.parametrize(("error", "attempts"), [(OSError(), 1), (Snooze(timedelta(hours=1)), 0)])
def test_held_up_retry_frees_thread(work: Work, other: psycopg.Connection, error: Exception, attempts: int) -> None:
    def end(store_id: UUID, number: int) -> None:
        if number:
            hold_keys(other, store_id, number)
            raise error

    held = work.add(end, tasks.keyed.using(priority=-1), number=1)
    work.add()
    with work.working():
        eventually(ends, [("running", 1)])
        assert [fields["job_id"] for fields in work.fields("job_held_up")] == [held]
        other.rollback()
        eventually(ends, [("queued", 1)])
    assert seen("SELECT attempts, run_at > now() FROM salon_jobs_job") == [(attempts, True)]


def test_cancellation_in_flight_holds_up_one_job(work: Work, other: psycopg.Connection) -> None:
    def discarded(**_: object) -> None:
        other.execute("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", [held])
        work.hooks.reset()
        raise OSError

    held = work.add(discarded, tasks.system.using(priority=-1, max_attempts=1))
    work.add(None, tasks.system)
    with work.working():
        eventually(ends, [("running", 1)])
        other.rollback()
        eventually(ends, [("failed", 1)])
    assert control.retry_jobs([held], using="default")[0].changed
