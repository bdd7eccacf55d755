"""Watcher that ends an embedded PostgreSQL server whose owner died, however it died.

Runs as a separate process: ``python postgres_watcher.py HOME temporary|persistent``. The owner writes the server's PID,
or 0 after stopping it, one per line, to standard input; end of input means that the owner closed the server or is gone,
even by ``kill -9``. A pipe was chosen over ``atexit`` (skipped by signals), over signal handlers (one per process, main
thread only) and over ``PR_SET_PDEATHSIG`` (Linux only, and fires when a *thread* ends).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 2.0))


def watch(home: Path, *, temporary: bool) -> None:
    """Read PIDs until the owner is gone, then end the last server and delete a temporary home."""
    pid = 0
    for line in sys.stdin:
        pid = int(line)
    if pid:
        _end(pid, home / "data" / "postmaster.pid")
    if temporary:
        shutil.rmtree(home, ignore_errors=True)


def _end(pid: int, pid_file: Path) -> None:
    """Send increasingly strong signals while the server's own PID file says that ``pid`` is the server."""
    for number, patience_s in _PATIENCE:
        if not _serves(pid, pid_file):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while _serves(pid, pid_file) and time.monotonic() < deadline:
            time.sleep(0.05)


def _serves(pid: int, pid_file: Path) -> bool:
    try:
        os.kill(pid, 0)
        return pid_file.read_text().splitlines()[0].strip() == str(pid)
    except (ProcessLookupError, FileNotFoundError, IndexError):
        return False


if __name__ == "__main__":
    watch(Path(sys.argv[1]), temporary=sys.argv[2] == "temporary")
