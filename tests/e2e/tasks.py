"""Tasks that worker processes run in tests; files tell the test what happened, and the task when to continue."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import sentry_sdk
from django.db import connection, connections, transaction

from project.salon.models import Customer
from salon_jobs import Backoff, current_job, emit, store_task, task
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.signals import job_finished
from salon_jobs.worker.in_flight import InFlightTable

_IN_AN_HOUR = Backoff(base=timedelta(hours=1))


def _write(store_id: UUID) -> None:
    Customer.objects.create(id=uuid4(), store_id=store_id, name="effect", email="a@example.com")


def _announce(started: str) -> None:
    with Path(started).open("a") as file:
        file.write(f"{current_job().attempt}\n")


@task(name="e2e-nothing")
def nothing(note: str = "") -> None:
    """Succeed."""


@store_task(name="e2e-write")
def write(store_id: UUID, note: str = "") -> None:
    """Add one row."""
    _write(store_id)


@store_task(name="e2e-flow-step", max_attempts=1)
def flow_step(store_id: UUID, number: int, folder: str) -> None:
    """Say that it begins, add one row of its number, say that it ends, and fail if the plan says so."""
    log = Path(folder, "log")
    fails = number in json.loads(Path(folder, "fails").read_text())
    for word in ("begin", "end"):
        with log.open("a") as file:
            file.write(f"{time.time_ns()} {number} {word}\n")
        if word == "begin":
            Customer.objects.create(id=uuid4(), store_id=store_id, name=str(number), email="")
            time.sleep(number % 5 / 100)
    if fails:
        raise OSError("as planned")


@store_task(name="e2e-ordered", concurrency_key="{customer}", ordered=True)
def ordered(store_id: UUID, customer: int, number: int, log: str) -> None:
    """Say that it begins, add one row, and say that it ends."""
    for word in ("begin", "end"):
        with Path(log).open("a") as file:
            file.write(f"{customer} {number} {word}\n")
        if word == "begin":
            _write(store_id)


@store_task(name="e2e-emit-order")
def emit_order(store_id: UUID, to: str) -> None:
    """Emit one message, with the arguments of ``write``, when this job's transaction commits."""
    emit(to, aggregate_id=str(store_id), event="order.created", payload={"note": "emitted"})


@store_task(name="e2e-write-and-look")
def write_and_look(store_id: UUID) -> None:
    """Add one row, and see no other store's."""
    _write(store_id)
    assert set(Customer.objects.values_list("store_id", flat=True)) == {store_id}


@store_task(name="e2e-write-outside", atomic=False)
def write_outside(store_id: UUID) -> None:
    """Look without a transaction, then add one row in a transaction of its own, and see no other store's."""
    assert not Customer.objects.exists()
    with transaction.atomic():
        write_and_look(store_id)


@task(name="e2e-fail", max_attempts=1)
def fail(note: str) -> None:
    """Fail for good."""
    logging.getLogger("till").info("opening the till")
    raise RuntimeError("the till is closed")


@store_task(name="e2e-report-and-fail", max_attempts=2)
def report_and_fail(store_id: UUID, *, captures: bool) -> None:
    """Report each failure before it is raised, as handlers do."""
    try:
        raise RuntimeError("the till is closed")
    except RuntimeError as error:
        if captures:
            sentry_sdk.capture_exception(error)
        else:
            logging.getLogger("till").exception("the till did not open")
        raise


@store_task(name="e2e-wait-for-file", max_attempts=3)
def wait_for_file(store_id: UUID, started: str, gate: str) -> None:
    """Add one row, then wait for a file; can be interrupted at any time."""
    _write(store_id)
    _announce(started)
    while not Path(gate).exists():
        time.sleep(0.01)


@task(name="e2e-once", at_most_once=True)
def once(started: str, gate: str) -> None:
    """Say that it runs, then wait for a file; its effect is outside of the database."""
    _announce(started)
    while not Path(gate).exists():
        time.sleep(0.01)


@store_task(name="e2e-steps", atomic=False)
def in_steps(store_id: UUID, folder: str, pause: str) -> None:
    """Add a row in each of two steps and of two elements of a loop; wait for a file in one of them, or between."""
    job = current_job()

    def write_note(note: str) -> None:
        Customer.objects.create(id=uuid4(), store_id=store_id, name=note, email="a@example.com")
        say(note)

    def say(note: str) -> None:
        with (Path(folder) / "calls").open("a") as file:
            file.write(f"{note}\n")
        if pause == note:
            while not (Path(folder) / "gate").exists():
                time.sleep(0.01)

    job.step("one", write_note, "one")
    say("between")
    job.step("two", write_note, "two")
    for note in job.cursor("loop", ["three", "four"]):
        write_note(note)


@store_task(name="e2e-await-for-ever", max_attempts=3, atomic=False)
async def await_for_ever(store_id: UUID, started: str) -> None:
    """Query, then await something that never happens."""
    assert not await Customer.objects.aexists()
    await asyncio.to_thread(_announce, started)
    await asyncio.Event().wait()


@store_task(name="e2e-sleep-in-query", max_attempts=3)
def sleep_in_query(store_id: UUID) -> None:
    """Add one row, then run one query for a minute."""
    _write(store_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@store_task(name="e2e-times-out", max_attempts=3, timeout=timedelta(seconds=0.3), backoff=_IN_AN_HOUR)
def times_out(store_id: UUID) -> None:
    """Add one row, then run one query for a minute."""
    sleep_in_query.function(store_id)


@store_task(name="e2e-numb", max_attempts=3, timeout=timedelta(seconds=1), backoff=_IN_AN_HOUR)
def numb(store_id: UUID) -> None:
    """Add one row, then make one C call that a timeout cannot interrupt, even if it comes before."""
    try:
        _write(store_id)
    finally:
        time.sleep(120)


@store_task(name="e2e-stubborn", max_attempts=3)
def stubborn(store_id: UUID, started: str) -> None:
    """Add one row, then make one C call that cannot be interrupted."""
    _write(store_id)
    _announce(started)
    time.sleep(120)


@store_task(name="e2e-stubborn-holding-its-row", max_attempts=3, atomic=False)
def stubborn_holding_its_row(store_id: UUID, started: str) -> None:
    """Finish inside a transaction that then hangs, so that giving the job back waits for its row."""
    with transaction.atomic():
        _write(store_id)
        current_job().finish()
        _announce(started)
        time.sleep(120)


@store_task(name="e2e-hold-gil", max_attempts=3)
def hold_gil(store_id: UUID, started: str, fifo: str) -> None:
    """Add one row, then make one C call that lets no other thread run until the FIFO is opened for writing."""
    _write(store_id)
    _announce(started)
    os.close(ctypes.PyDLL(None).open(fifo.encode(), os.O_RDONLY))


@task(name="e2e-overdue", max_attempts=2)
def overdue(started: str) -> None:
    """Advance to the instant at which this run must be killed, and continue."""
    gc.unfreeze()  # objects that a child froze at its start are not included
    table: InFlightTable = next(thing for thing in gc.get_objects() if type(thing) is InFlightTable)
    [run] = [run for run in table.shown() if run.job_id == current_job().id]
    table.show(run.slot, run.job_id, run.lease, kill_at=time.monotonic())
    _announce(started)
    time.sleep(120)


@task(name="e2e-die")
def die(status: int = 9) -> None:
    """End the process as a crash would; with 0, as if it had succeeded."""
    os._exit(status)


@task(name="e2e-leave-behind")
def leave_behind(pid: str, *, own_session: bool = False) -> None:
    """Start a process that holds our standard output, and outlives this process if it has a session of its own."""
    Path(pid).write_text(str(subprocess.Popen(["sleep", "60"], start_new_session=own_session).pid))


@store_task(name="e2e-fork")
def fork(store_id: UUID, pid: str, ends_by: str = "return") -> None:
    """Go on twice, in this process and in a copy of it, and write a row in this one."""
    copy = os.fork()
    if copy:
        _write(store_id)
        status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        Path(pid).write_text(f"{copy} {status}")
    elif ends_by == "error":
        raise ValueError("in the copy")
    elif ends_by == "exit":
        sys.exit(7)
    elif ends_by == "close":
        connections.close_all()


@task(name="e2e-fork-and-stay")
def fork_and_stay(pid: str) -> None:
    """Leave a copy behind that waits."""
    if copy := os.fork():
        Path(pid).write_text(str(copy))
    else:
        time.sleep(60)


@task(name="e2e-fork-in-coroutine")
async def fork_in_coroutine(pid: str) -> None:
    """Go on twice, in a coroutine, while another one is about to go on."""

    async def fork() -> int:
        return os.fork()

    async def go_on() -> None:
        with Path(f"{pid}-others").open("a") as others:
            others.write(f"{os.getpid()} ")

    copy, _ = await asyncio.gather(fork(), go_on())
    if copy:
        status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        Path(pid).write_text(f"{copy} {status}")


def _backend() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return str(cursor.fetchone())


@store_task(name="e2e-multiprocess")
def multiprocess(store_id: UUID, done: str) -> None:
    """Write a row while a process of its own, forked by multiprocessing, uses the database."""
    _write(store_id)
    started = multiprocessing.get_context("fork").Process(target=lambda: Path(done).write_text(_backend()))
    started.start()
    started.join()
    assert started.exitcode == 0
    assert Path(done).read_text() != _backend()


@task(name="e2e-close-output")
def close_output(how: str) -> None:
    """Take standard output and standard error away from the whole process."""
    if how == "closed":
        sys.stdout.close()
        sys.stderr.close()
    elif how == "none":
        sys.stdout = sys.stderr = None
    else:  # whatever is written to them fails
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open("/dev/full", os.O_WRONLY), stream.fileno())


@task(name="e2e-exit-in-receivers")
def exit_in_receivers(started: str) -> None:
    """Have receivers of the ends of all jobs raise what only a process should; the last of them notes the job."""

    def leave(**_: object) -> None:
        raise SystemExit(0)

    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    def note(job: CurrentJob, **_: object) -> None:
        with Path(started).open("a") as file:
            file.write(f"{job.id}\n")

    for receiver in (leave, interrupt, note):
        job_finished.connect(receiver, weak=False)


@task(name="e2e-hold-finisher")
def hold_finisher() -> None:
    """Let the thread that writes successes hang, in a receiver."""
    job_finished.connect(lambda **_: time.sleep(600), weak=False)


@task(name="e2e-wait-briefly")
def wait_briefly() -> None:
    """Take a second."""
    time.sleep(1)


@task(name="e2e-large-result", keep_result=timedelta(hours=1))
def large_result(size: int) -> str:
    """Return a text of this length."""
    return "x" * size


@task(name="e2e-take-large")
def take_large(text: str) -> None:
    """Take a large text."""
