"""Progress that handlers report: kept in memory, and written once a second by the thread that claims."""

from __future__ import annotations

import threading
import time
from typing import Final

from salon_jobs.core.error_report import shown_message
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.jobs.run import JobRun

_EVERY_S: Final = 1.0


class ProgressWriter:
    """Writer of the progress of this process's runs. ``note`` is thread-safe; a worker's claiming thread flushes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: dict[JobRun, tuple[int, int | None, str]] = {}
        self._shown: set[JobRun] = set()
        self._flushed = float("-inf")

    def note(self, running: JobRun, done: int, total: int | None, text: str) -> None:
        """Write this within a second, unless newer progress replaces it; in a worker only. Raises OptionInvalid."""
        for number in (done, 0 if total is None else total):
            if not (isinstance(number, int) and 0 <= number < 2**63):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionInvalid(f"progress takes whole numbers from zero, not {short_repr(number)}")
        if running.resets_session:
            with self._lock:
                self._new[running] = (done, total, str(text))

    def flush_when_due(self, *, using: str) -> None:
        """Flush if the last flush was a second ago. Raises database errors, but keeps unwritten progress."""
        if (self._new or self._shown) and time.monotonic() - self._flushed >= _EVERY_S:
            self.flush(using=using)

    def flush(self, *, using: str) -> None:
        """Write new progress, and delete that of ended runs. Worker role. Raises database errors."""
        self._flushed = time.monotonic()
        with self._lock:
            new, self._new = self._new, {}
        new = {run: said for run, said in new.items() if run.ended is None}
        ended = [run for run in self._shown if run.ended is not None]
        if not (new or ended):
            return
        try:
            self._write(new, ended, using)
        except BaseException:
            with self._lock:
                self._new = new | self._new
            raise
        self._shown = self._shown.difference(ended).union(new)

    @staticmethod
    def _write(new: dict[JobRun, tuple[int, int | None, str]], ended: list[JobRun], using: str) -> None:
        fences = [run.job.fence for run in ended]
        statements.execute("delete_progress", {"ids": [run.id for run in ended], "fences": fences}, using=using)
        values = {
            "ids": [run.id for run in new],
            "leases": [run.job.lease for run in new],
            "done": [done for done, _, _ in new.values()],
            "totals": [total for _, total, _ in new.values()],
            "texts": [shown_message(text)[:255] for _, _, text in new.values()],
        }
        statements.execute("write_progress", values, using=using)


writer: Final = ProgressWriter()
