"""Holds what the measures of one run share: server, our database, the peers that take part, sizes and a work folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import queue
from benchmarks.peers import Peer
from benchmarks.processes import ROOT, Running, act, environment, manage, python, run
from benchmarks.redis import RedisDatabase, redis_server
from benchmarks.server import Database, Server
from benchmarks.sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Is one run of the benchmark."""

    server: Server
    database: Database
    template: Database
    peers: Sequence[Peer]
    peer_databases: Mapping[str, Database | RedisDatabase]
    sizes: Sizes
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def worker(self, *arguments: str, database: Database | None = None, **more: str) -> Running:
        """Start our worker as a deployment does: the real command, its health endpoint on, its JSON log in a file."""
        url = (database or self.database).url("worker")
        command = manage("runworker", "--health-addr", "127.0.0.1:0", *arguments)
        return Running(command, environment(WORKER_DATABASE_URL=url, **more), self.path("worker.log"))

    def relay(self, **more: str) -> Running:
        """Start our relay as a deployment does, with its rate limit lifted."""
        command = manage("relay_outbox", "--health-addr", "127.0.0.1:0")
        env = environment(WORKER_DATABASE_URL=self.database.url("worker"), OUTBOX_THROUGHPUT="0", **more)
        return Running(command, env, self.path("relay.log"))

    def act(self, action: str, *arguments: object, role: str, database: Database | None = None) -> dict[str, float]:
        """Run an action of ``benchmarks.ours`` to its end as a role, and return its figures."""
        url = (database or self.database).url(role)
        return act(python("benchmarks.ours", action, *map(str, arguments)), environment(DATABASE_URL=url))

    def start(self, module: str, *arguments: object, role: str, **more: str) -> Running:
        """Start one of our modules as a role, to be ended by the caller."""
        env = environment(DATABASE_URL=self.database.url(role), **more)
        return Running(python(module, *map(str, arguments)), env, self.path("module.log"))

    def act_peer(self, peer: Peer, *arguments: object) -> dict[str, float]:
        """Run a peer's program to its end, and return its figures."""
        env = peer.environment(self.peer_databases[peer.name])
        return act(peer.command(*map(str, arguments)), env, cwd=peer.folder)

    def start_peer(self, peer: Peer, *, action: str = "worker", processes: int = 1, **more: str) -> Running:
        """Start a peer's worker, in so many processes that run jobs, by an ``action`` of its program."""
        env = peer.environment(self.peer_databases[peer.name], **more)
        log = self.path(f"{peer.name}.log")
        if peer.forks:
            return Running(peer.command(action, str(processes)), env, log, cwd=peer.folder)
        return Running(peer.command(action), env, log, cwd=peer.folder, count=processes)

    def add_waiting(self, peer: Peer, *arguments: object, **more: str) -> None:
        """Add a peer's jobs that wait."""
        env = peer.environment(self.peer_databases[peer.name], **more)
        run(peer.waiting_command("add", *map(str, arguments)), env, cwd=peer.folder)

    def start_waiting(self, peer: Peer, *arguments: object, **more: str) -> Running:
        """Start a peer's worker for them."""
        env = peer.environment(self.peer_databases[peer.name], **more)
        return Running(
            peer.waiting_command("work", *map(str, arguments)), env, self.path(f"{peer.name}.log"), cwd=peer.folder
        )

    def path(self, name: str) -> Path:
        """Return a new path in the work folder."""
        return self.folder / f"{next(self._numbers):04}-{name}"

    def sweep(self) -> None:
        """Remove what the last contestant wrote: the log of millions of jobs is large."""
        for path in self.folder.iterdir():
            path.unlink()

    @contextmanager
    def another_database(self) -> Iterator[Database]:
        """Give one measure a database of its own."""
        with self.server.database(self.template.name) as database:
            yield database


@contextmanager
def opened(server: Server, peers: Sequence[Peer], sizes: Sizes, folder: Path) -> Iterator[Bench]:
    """Create and migrate our database and one for each peer; drop them at the end."""
    with ExitStack() as stack:
        template = stack.enter_context(server.database())
        prepare(template)
        queue.create_stores(template, 1, queue.STORES)
        database = stack.enter_context(server.database(template.name))
        peer_databases: dict[str, Database | RedisDatabase] = {}
        for peer in peers:
            if peer.redis:
                peer_databases[peer.name] = stack.enter_context(redis_server(peer.redis))
            else:
                peer_databases[peer.name] = stack.enter_context(server.database())
        for peer in peers:
            run(peer.command("setup"), peer.environment(peer_databases[peer.name]), cwd=peer.folder)
        yield Bench(
            server=server,
            database=database,
            template=template,
            peers=peers,
            peer_databases=peer_databases,
            sizes=sizes,
            folder=folder,
        )


def prepare(database: Database, *, tree: Path = ROOT) -> None:
    """Create the roles and migrate, by the commands of a tree, as a deployment does."""
    passwords = {
        "MIGRATOR_PASSWORD": database.passwords["migrator"],
        "APP_PASSWORD": database.passwords["web"],
        "WORKER_RUNTIME_PASSWORD": database.passwords["worker"],
        "JOBS_OPERATOR_PASSWORD": database.passwords["operator"],
    }
    # Roles of an earlier run on the same server have other passwords.
    command = manage("bootstrap_roles", "--share-roles", "--change-passwords", "--yes")
    run(command, environment(DATABASE_URL_BOOTSTRAP=database.superuser_url, **passwords), cwd=tree)
    env = environment(DATABASE_URL_MIGRATOR=database.url("migrator"))
    run(manage("migrate", "--verbosity", "0"), env, cwd=tree)
