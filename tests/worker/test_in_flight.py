"""Other processes can read what threads run, even after the writer was killed, and which of them are idle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest

from salon_jobs.worker import in_flight
from salon_jobs.worker.in_flight import NEVER, IdleTable, InFlightTable

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


def test_private_table() -> None:
    table = InFlightTable(2)
    table.show(0, 5, 7)
    (run,) = table.shown()
    assert (run.job_id, run.lease, run.kill_at) == (5, 7, NEVER)
    table.clear(0)
    assert table.shown() == []


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
