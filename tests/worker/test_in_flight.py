"""Tests that another process can read what threads run, even after the writer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

from salon_jobs.worker.in_flight import NEVER, InFlightTable

WRITER = """
import sys, time
from salon_jobs.worker.in_flight import InFlightTable
table = InFlightTable(3, fileno=int(sys.argv[1]))
table.show(0, 11, 1)
table.clear(0)
table.show(1, 12, 2, kill_at=99.5)
print("written", flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_ran_is_still_shown() -> None:
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


def test_a_table_without_a_file_is_private() -> None:
    table = InFlightTable(2)
    table.show(0, 5, 7)
    (run,) = table.shown()
    assert (run.job_id, run.lease, run.kill_at) == (5, 7, NEVER)
    table.clear(0)
    assert table.shown() == []
