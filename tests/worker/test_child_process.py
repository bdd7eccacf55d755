"""What children print arrives in whole lines; what they run, and which of them are idle, others can read."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from salon_jobs.worker import in_flight
from salon_jobs.worker.child import ControlChannel
from salon_jobs.worker.child_process import ChildSupervisor, Life, relay_lines
from salon_jobs.worker.in_flight import IdleTable, InFlightRun, InFlightTable
from tests.waiting import LIMIT_S


def relayed(*chunks: bytes) -> None:
    """Write to a pipe while it is relayed, and close it."""
    source, sink = os.pipe()
    relay = threading.Thread(target=relay_lines, args=(source,))
    relay.start()
    for chunk in chunks:
        os.write(sink, chunk)
    os.close(sink)
    relay.join(LIMIT_S)
    assert not relay.is_alive()
    os.close(source)


def test_lines_arrive_whole(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    long = b"x" * 200_000
    relayed(b"one\ntw", b"o\n", long, b"\nthr")
    assert capsysbinary.readouterr().out == b"one\ntwo\n" + long + b"\nthr\n"


def test_lines_of_children_do_not_mix(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [name * 3000 + b"\n" for name in (b"a", b"b")]
    # Each chunk ends in the middle of a line.
    chunks = [(line * 200)[at : at + 7777] for line in lines for at in range(0, 200 * 3001, 7777)]
    half = len(chunks) // 2
    threads = [threading.Thread(target=relayed, args=some) for some in (chunks[:half], chunks[half:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = capsysbinary.readouterr().out.splitlines(keepends=True)
    assert sorted(found) == sorted(lines * 200)


@pytest.mark.usefixtures("capsysbinary")
def test_much_output_is_relayed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a child that writes much would wait for room in the pipe each time."""
    rests: list[float] = []

    def record(seconds: float) -> None:
        rests.append(seconds)
        really(seconds)

    really = time.sleep
    monkeypatch.setattr(time, "sleep", record)
    relayed(*[b"a line of a log, which is short\n"] * 30_000)
    assert min(rests, default=0.0) < 0.02


def test_unread_log_delays_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=SimpleNamespace(write=refuse)))
    relayed(*[b"line\n" * 10_000] * 10)


def test_output_that_takes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    relayed("größer\n".encode(), b"\xff\n")
    assert out.getvalue() == "größer\n\ufffd\n"


def test_cut_off_message_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"facts": {}}\n{"fau')
        theirs.close()
        link = ControlChannel(ours)
        assert list(link.received()) == [{"facts": {}}]
        link.send(stop=True)  # to nobody


WRITER = """
import sys, time
from salon_jobs.worker.in_flight import InFlightTable
table = InFlightTable(3, fileno=int(sys.argv[1]))
table.show(0, 11, 1)
table.clear(0)
table.show(1, 12, 2, kill_at=99.5)
print("written", flush=True)
time.sleep(600)
"""


@pytest.mark.process
def test_runs_of_killed_process() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(InFlightTable.size(3))
        fileno = file.fileno()
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(fileno)], pass_fds=[fileno], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"written\n"
            os.kill(writer.pid, signal.SIGKILL)
        (run,) = InFlightTable(3, fileno=fileno).shown()
    assert (run.slot, run.job_id, run.lease, run.kill_at) == (1, 12, 2, 99.5)


class Child:
    """Child with a job past its limit and an end that it cannot write. Once asked for its runs, another follows it."""

    process_id, pid, silent_s = 1, 0, 0.0

    def __init__(self, on_look: Callable[[], object] = lambda: None) -> None:
        self.on_look, self.is_killed = on_look, False
        self.report = {"stuck_s": 60.0}

    def runs(self) -> list[InFlightRun]:
        self.on_look()
        return [InFlightRun(0, job_id=1, lease=1, began=0.0, kill_at=0.0)]

    def stop(self) -> None:
        """Be asked to stop."""

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize("life", [Life.WORKING, Life.ALONE])
@pytest.mark.parametrize("is_stuck", [False, True])
def test_next_child_is_spared(life: Life, is_stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends while its supervisor looks at it is not mistaken for the one that follows."""
    supervisor = ChildSupervisor(
        0, cast("Any", None), cast("Any", SimpleNamespace(using="x", polled_s_ago=0.0)), cast("Any", None)
    )
    successor = Child()

    def replace() -> bool:
        supervisor.process, supervisor._life = cast("Any", successor), Life.WORKING
        return False

    supervisor.process, supervisor._life = cast("Any", Child(replace)), life
    monkeypatch.setattr(supervisor, "_waits_for_lock", replace)
    monkeypatch.setattr(supervisor, "_stuck_since", -100.0)
    if is_stuck:
        supervisor.kill_if_stuck()
    else:
        supervisor.kill_if_overdue()
    assert not successor.is_killed
    assert supervisor._life is Life.WORKING


def test_first_idle_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(IdleTable.size(3))
        tables = [IdleTable(3, number=number, fileno=file.fileno()) for number in range(3)]

        def answering() -> list[int]:
            return [number for number, table in enumerate(tables) if not table.another_answers]

        assert answering() == [0, 1, 2], "none is idle: whoever has room"
        tables[1].show(idle=True)
        tables[2].show(idle=True)
        assert answering() == [0, 1]
        tables[0].show(idle=True)
        assert answering() == [0]
        tables[0].show(idle=False)
        assert answering() == [0, 1]
        later = time.monotonic() + 2.5
        monkeypatch.setattr(in_flight, "time", SimpleNamespace(monotonic=lambda: later))
        assert answering() == [0, 1, 2], "one that died says so no more"
