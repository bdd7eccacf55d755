"""Progress that handlers report: kept in memory, and written once a second, on a connection of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from django.db import Error, connections

from salon_jobs.core.error_report import shown_message
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.text import shown
from salon_jobs.db import statements

if TYPE_CHECKING:
    from salon_jobs.jobs.current import RunningJob

_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running job is, as it last said: ``done`` of ``total``, which is None if it does not know."""

    done: int
    total: int | None
    text: str
    updated_at: datetime


class ProgressWriter:
    """Writer of the progress of this process's runs, on a thread that lives as long as there are any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: dict[RunningJob, tuple[int, int | None, str]] = {}
        self._shown: set[RunningJob] = set()
        self._works = False

    def note(self, running: RunningJob, done: int, total: int | None, text: str) -> None:
        """Have this written within a second, unless something newer is; only in a worker. Raises OptionInvalid."""
        for number in (done, 0 if total is None else total):
            if not (isinstance(number, int) and 0 <= number < 2**63):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionInvalid(f"progress takes whole numbers from zero, not {shown(number)}")
        if not running.resets_session:
            return
        with self._lock:
            self._new[running] = (done, total, str(text))
            if not self._works:
                self._works = True
                threading.Thread(target=self._work, args=(running.leases.using,), daemon=True).start()

    def _work(self, using: str) -> None:
        try:
            while True:
                with self._lock:
                    new, self._new = self._new, {}
                    ended = [run for run in self._shown if run.ended is not None]
                    self._shown = self._shown.difference(ended).union(new)
                    if not (self._shown or ended):
                        self._works = False
                        return
                try:
                    self._write(new, ended, using)
                except Error:  # an outage, which other threads log; what is left behind is pruned
                    connections[using].close()
                time.sleep(_EVERY_S)
        finally:
            connections.close_all()

    @staticmethod
    def _write(new: dict[RunningJob, tuple[int, int | None, str]], ended: list[RunningJob], using: str) -> None:
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
