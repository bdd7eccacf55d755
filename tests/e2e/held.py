"""Jobs that say when they run, and that end when the test lets them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e import tasks
from tests.waiting import eventually


class Held:
    """Files by which the tasks of ``tests.e2e.tasks`` and a test talk, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def enqueue(self, task: Any = tasks.wait_for_file, options: Mapping[str, Any] = {}, **arguments: Any) -> int:
        """Enqueue a job with the files that its task names; return its id."""
        names = {"started", "gate", "fifo"} & inspect.signature(task.function).parameters.keys()
        if "fifo" in names and not (self._folder / "fifo").exists():
            os.mkfifo(self._folder / "fifo")
        files = {name: str(self._folder / name) for name in names}
        return int(task.using(**options).enqueue(**files, **arguments).id)

    def begin(self, task: Any = tasks.wait_for_file, options: Mapping[str, Any] = {}, **arguments: Any) -> int:
        """Enqueue a job, and wait until one more runs; return its id."""
        before = len(self.runs())
        job_id = self.enqueue(task, options, **arguments)
        self.wait_for_runs(before + 1)
        return job_id

    def runs(self) -> list[str]:
        """Return the attempt of each run that has begun."""
        started = self._folder / "started"
        return started.read_text().split() if started.exists() else []

    def wait_for_runs(self, number: int) -> None:
        eventually(lambda: len(self.runs()), number)

    def let_go(self) -> None:
        """Let all go on, those that are still to begin too."""
        (self._folder / "gate").touch()

    def open_fifo(self) -> None:
        """Let the run go on that holds its GIL, when it holds it."""
        os.close(os.open(self._folder / "fifo", os.O_WRONLY))
