"""One tree of the project with its own server, worker, and client that adds jobs; and how to get that of a commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import bench, queue
from benchmarks.cost.meter import Meter
from benchmarks.observer import OBSERVER
from benchmarks.processes import ROOT, ProcessFailed, Running, descendants, environment, manage, run
from benchmarks.server import Database, embedded_server, role_passwords
from benchmarks.watch import Successes

_HERE: Final = Path(__file__).parent
# Without what depends on the time rather than on the jobs: vacuums, and images of pages that change for the first time
# after a checkpoint. Enough of each query is shown to tell what it does.
_OPTIONS: Final = {
    "autovacuum": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "track_activity_query_size": "16384",
}
_LOOK_S: Final = 0.05
# What follows the last success: the counts of the batch, the answer of the server.
_REST_S: Final = 0.3
_PATIENCE_S: Final = 600.0
# One by one, each with its commit on the disk.
_ADDED_ONE_BY_ONE: Final = 5
_FEW: Final = 500
# As the task says.
_IN_CHUNK: Final = 100


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree whose worker is idle."""

    database: Database
    worker: Running
    successes: Successes
    adder: subprocess.Popen[str]
    of_worker: Meter
    of_adder: Meter

    def drain(self, fill: Callable[[Database, int], None], jobs: int) -> dict[str, float]:
        """Return what the worker and the server use for one of so many jobs, all of which were due before the first."""
        queue.empty(self.database)
        expected = self.successes.count() + jobs
        with self._stopped():
            fill(self.database, jobs)
            self.database.execute("VACUUM (ANALYZE)")
            before = self.of_worker.read()
        deadline = time.monotonic() + _PATIENCE_S
        while self.successes.count() < expected:
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{jobs} jobs were not done within {_PATIENCE_S:.0f} s")
            self.of_worker.look()
            time.sleep(_LOOK_S)
        time.sleep(_REST_S)
        self.of_worker.look()
        return self.of_worker.spent(before, self.of_worker.read(), jobs)

    def add(self, how: str, jobs: int) -> dict[str, float]:
        """Return what a client and the server use to add one of so many jobs, while the worker is stopped."""
        count = -(-jobs // _ADDED_ONE_BY_ONE) if how == "one" else jobs
        with self._stopped():
            before = self.of_adder.read()
            self._order(f"{how} {count}")
            self.of_adder.look()
            found = self.of_adder.spent(before, self.of_adder.read(), count)
            self.database.execute(f"DELETE FROM {queue.TABLE}")  # a worker that is stopped can hold no lock on them
        return found

    def _order(self, order: str) -> None:
        assert self.adder.stdin is not None and self.adder.stdout is not None  # noqa: S101, PT018 - both are pipes
        self.adder.stdin.write(f"{order}\n")
        self.adder.stdin.flush()
        if self.adder.stdout.readline() != "added\n":
            raise ProcessFailed("the client that adds jobs has ended")

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        pids = [self.worker.pid, *descendants(self.worker.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def _fill(database: Database, jobs: int) -> None:
    queue.fill(database, "bench-noop", jobs)


def _fill_stores(database: Database, jobs: int) -> None:
    queue.fill_stores(database, "bench-store-noop", jobs)


def _fill_chunks(database: Database, jobs: int) -> None:
    stores = min(queue.STORES, -(-jobs // _IN_CHUNK))
    queue.fill_stores(database, "bench-store-chunk", jobs, stores=stores)


def _plain_after_store(tree: Tree, jobs: int) -> dict[str, float]:
    """Measure plain jobs on threads that have connections, since each has run some jobs of stores."""
    tree.drain(_fill_stores, min(jobs, _FEW))
    return tree.drain(_fill, jobs)


#: What is measured, by name and in this order: each returns what one job costs, part by part.
MEASURES: Final[Mapping[str, Callable[[Tree, int], dict[str, float]]]] = {
    "plain": lambda tree, jobs: tree.drain(_fill, jobs),
    "store": lambda tree, jobs: tree.drain(_fill_stores, jobs),
    "plain-after-store": _plain_after_store,
    "chunk": lambda tree, jobs: tree.drain(_fill_chunks, jobs),
    "enqueue": lambda tree, jobs: tree.add("one", jobs),
    "enqueue-many": lambda tree, jobs: tree.add("many", jobs),
}


@contextmanager
def opened(path: Path, folder: Path) -> Iterator[Tree]:
    """Start a server, migrate by the commands of a tree, and start its worker, and a client, with this interpreter."""
    with ExitStack() as stack:
        found = stack.enter_context(embedded_server(role_passwords(), **_OPTIONS))
        database = stack.enter_context(found.database())
        bench.prepare(database, tree=path)
        queue.create_stores(database, 1, queue.STORES)
        command = manage("runworker", "--health-addr", "127.0.0.1:0", "--processes", "1")
        named = environment(WORKER_DATABASE_URL=database.url("worker"), PYTHONPATH=str(_HERE / "names"))
        worker = stack.enter_context(Running(command, named, folder / "worker.log", cwd=path))
        successes = Successes(worker)
        stack.callback(successes.close)
        adder = stack.enter_context(_adder(path, database, folder))
        server = database.server_pid()
        if server is None:
            raise ProcessFailed("the processes of the server are not those of this machine")
        connection = stack.enter_context(database.connect(application_name=OBSERVER))
        of_worker = Meter(connection, server, worker.pid, name="worker")
        of_adder = Meter(connection, server, adder.pid, name="client")
        yield Tree(database, worker, successes, adder, of_worker, of_adder)


@contextmanager
def _adder(path: Path, database: Database, folder: Path) -> Iterator[subprocess.Popen[str]]:
    # -P: the modules of this folder are not those of the tree.
    command = [sys.executable, "-P", str(_HERE / "adder.py")]
    env = environment(DATABASE_URL=database.url("web"), PYTHONPATH=str(path))
    with (
        (folder / "adder.log").open("w") as log,
        subprocess.Popen(
            command, cwd=path, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        yield process  # it ends when its input does


@contextmanager
def checked_out(name: str, folder: Path) -> Iterator[Path]:
    """Return the tree of a commit, in a worktree until the end; or the folder so named, if there is no such commit."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except ProcessFailed:
        if not (Path(name) / "manage.py").is_file():
            raise ProcessFailed(f"{name!r} is neither a commit nor the folder of a clone") from None
        yield Path(name).resolve()
        return
    path = folder / "base"
    _git("worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        yield path
    finally:
        _git("worktree", "remove", "--force", str(path))


def last_release() -> str | None:
    """Return the tag of the last release; None if there is none."""
    try:
        return _git("describe", "--tags", "--abbrev=0")
    except ProcessFailed:
        return None


def described(path: Path) -> str:
    """Return what a tree is: its commit, and whether it was changed since."""
    try:
        return _git("describe", "--always", "--dirty", cwd=path)
    except ProcessFailed:
        return "unknown"


def _git(*arguments: str, cwd: Path = ROOT) -> str:
    command: Sequence[str] = ("git", *arguments)
    return run(command, environment(), cwd=cwd).strip()
