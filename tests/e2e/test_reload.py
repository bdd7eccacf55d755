"""Edits the code of a running worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.worker_process import WorkerProcess, gone
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")
TASKS = """
import logging
import time
from pathlib import Path
from salon_jobs import task

@task(name="reload-say")
def say() -> None:
    logging.getLogger("salon_jobs").warning("VERSION")

@task(name="reload-wait")
def wait() -> None:
    Path("FOLDER", "begun").touch()
    while not Path("FOLDER", "go on").exists():
        time.sleep(0.01)
"""


class ReloadingWorker(WorkerProcess):
    command = "salon_jobs worker --reload"


class Shop:
    """App with tasks, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "reloaded_shop").mkdir()
        (folder / "reloaded_shop" / "__init__.py").touch()
        self.write("version 1")

    def write(self, version: str, *, more: str = "") -> None:
        text = TASKS.replace("VERSION", version).replace("FOLDER", str(self.folder)) + more
        path = self.folder / "reloaded_shop" / "tasks.py"
        path.write_text(text)
        # Later than the last version, however coarse the clock of the file system is.
        self.written = getattr(self, "written", path.stat().st_mtime) + 2
        os.utime(path, (self.written, self.written))

    def worker(self) -> ReloadingWorker:
        return ReloadingWorker(
            APP=[str(self.folder), "reloaded_shop"], PATCHES={"salon_jobs.process.reloader._PATIENCE_S": 0.2}
        )


def says(worker: WorkerProcess, text: str) -> None:
    change("INSERT INTO salon_jobs_job (task) VALUES ('reload-say')")
    eventually(lambda: text in worker.output, what=lambda: worker.output)


def test_changed_task_is_reloaded(tmp_path: Path) -> None:
    """No job is lost, though the first change cannot be imported."""
    shop = Shop(tmp_path)
    with shop.worker() as worker:
        says(worker, "version 1")
        [(job,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('reload-wait') RETURNING id")
        eventually((tmp_path / "begun").exists)
        (tmp_path / "begun").unlink()
        shop.write("version 2", more="syntax error")
        worker.wait_for("process_reloading", changed=str(tmp_path / "reloaded_shop" / "tasks.py"))
        worker.wait_for("process_failed", status=1)
        assert "SyntaxError" in worker.output
        shop.write("version 3")
        eventually((tmp_path / "begun").exists, what=lambda: worker.output)
        assert seen("SELECT state, attempts FROM salon_jobs_job WHERE id = %s", job) == [("running", 0)]
        says(worker, "version 3")
        (tmp_path / "go on").touch()
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert worker.end() == 0


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_nothing_outlives_the_reloader(tmp_path: Path, number: signal.Signals) -> None:
    with Shop(tmp_path).worker() as worker:
        supervisor = int(worker.wait_for("process_started", kind="supervisor")["pid"])
        child = int(worker.wait_for("process_started", kind="worker")["pid"])
        assert supervisor != worker.pid
        worker.stop(number)
        assert worker.wait() == (0 if number is signal.SIGINT else -signal.SIGKILL)
        eventually(lambda: gone(supervisor, child))
