"""Watches a worker through the files it writes: the marks of its jobs, and its log."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.processes import ProcessFailed, Running

_LOOK_S = 0.02
_SUCCESS = b'"job_succeeded"'


class Marks:
    """Is the file in which jobs note when they were added and when they started, in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> list[tuple[int, int]]:
        """Return the complete lines so far."""
        lines = self.path.read_text().split("\n")[:-1]
        return [(int(added), int(started)) for added, started in map(str.split, lines)]

    def wait_for(self, count: int, worker: Running, *, patience_s: float) -> bool:
        """Wait until so many jobs have started; False when the time is over first."""
        deadline = time.monotonic() + patience_s
        while len(self.read()) < count:
            worker.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True


class Successes:
    """Counts the successes in our worker's log as it grows."""

    def __init__(self, worker: Running) -> None:
        self._worker = worker
        self._file = worker.log.open("rb")
        self._rest = b""
        self._count = 0

    def count(self) -> int:
        """Return how many jobs have succeeded so far. Raises ProcessFailed when the worker has ended."""
        self._worker.check()
        while chunk := self._file.read(1 << 20):
            text = self._rest + chunk
            self._count += text.count(_SUCCESS)
            # What could be the beginning of another one; too short to be counted twice.
            self._rest = text[-(len(_SUCCESS) - 1) :]
        return self._count

    def wait_for(self, count: int, *, patience_s: float) -> None:
        """Wait until so many have succeeded. Raises ProcessFailed when the time is over first."""
        deadline = time.monotonic() + patience_s
        while self.count() < count:
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self._count} of {count} jobs succeeded within {patience_s:.0f} s")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Close the log."""
        self._file.close()


def percentile(values: list[float], part: float) -> float:
    """Return the smallest value that at least this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(part * 100) * len(ordered) // 100) - 1)]
