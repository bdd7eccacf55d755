"""Failovers: how the primary ends, what its clients notice of it, and what is then awaited and examined."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg

from tests.chaos.failover.client import BATCH, Client, Load
from tests.chaos.failover.rig import PATIENCE_S, STORES, Rig, wait_for
from tests.chaos.failover.verdict import Verdict, examine
from tests.servers.standby import port_of

_CALM_S: Final = 0.7
# A sequence logs 32 values ahead, so fewer lost rows would leave their numbers unused.
_BEYOND: Final = 40
_HELD: Final = ("held-outside", "held-outside", "held-system", "held-store", "held-once")
# What is done by these is lost with their row.
_REUSING: Final = ("held-store", "held-system")
_SENT: Final = 20
_FROZEN_S: Final = 2.0
_BEHIND_S: Final = 2.0
_HEALING_S: Final = 60.0
_FIRED_S: Final = 20.0
_TASK_OF: Final = {
    "held-outside": "failover-held-outside",
    "held-system": "failover-held-system",
    "held-store": "failover-held-store",
    "held-once": "failover-held-once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One failover.

    ``end`` is what becomes of the primary: ``killed``; ``read-only``, with its connections kept (with synchronous
    replication it is stopped some seconds after the promotion); ``frozen``, and killed some seconds after the
    promotion; ``behind``: restarted as a standby at the address, which moves some seconds later. ``silent``: a killed
    primary's host answers nothing afterwards, instead of refusing connections. ``newcomers``: a worker whose row is in
    what is lost. ``casualties``: the process that runs the held jobs is killed together with the primary.
    """

    synchronous: bool
    end: str
    hosts: bool = False
    silent: bool = False
    newcomers: bool = False
    casualties: bool = False


SCENES: Final = {
    "sync, killed": Scene(synchronous=True, end="killed"),
    "sync, killed with a process": Scene(synchronous=True, end="killed", casualties=True),
    "async, killed": Scene(synchronous=False, end="killed"),
    "async, killed, new process": Scene(synchronous=False, end="killed", newcomers=True),
    "sync, read-only": Scene(synchronous=True, end="read-only"),
    "async, read-only": Scene(synchronous=False, end="read-only"),
    "sync, frozen": Scene(synchronous=True, end="frozen"),
    "async, frozen": Scene(synchronous=False, end="frozen"),
    "sync, address behind": Scene(synchronous=True, end="behind"),
    "async, two hosts, one silent": Scene(synchronous=False, end="killed", hosts=True, silent=True),
    "sync, two hosts, one silent": Scene(synchronous=True, end="killed", hosts=True, silent=True),
    "async, two hosts, read-only": Scene(synchronous=False, end="read-only", hosts=True),
}


class Round:
    """One scene in a rig that lasts: load, failover, healing, examination, and a new standby."""

    def __init__(self, rig: Rig, scene: Scene, number: int, dice: random.Random, *, disturbed: bool = False) -> None:
        self._rig, self._scene, self._number, self._dice, self._disturbed = rig, scene, number, dice, disturbed
        self._aggregates = [f"r{number}a{n}" for n in range(12)]
        self._orders = [("orders", f"r{number}held")]
        self._fresh = (f"fresh{number}", f"r{number}fresh")
        self._all = [*self._aggregates, f"r{number}held", f"r{number}fresh", f"r{number}probe"]
        self._clients: list[Client] = []
        self._held: list[int] = []
        self._gates = (f"gate-{number}-before", f"gate-{number}-after")
        self.verdict = Verdict()

    def run(self) -> Verdict:
        """Run the scene. A process that does not heal, or a scene that cannot go on, is a fault."""
        rig, servers, verdict = self._rig, self._rig.servers, self.verdict
        (servers.synchronous if self._scene.synchronous else servers.asynchronous)()
        rig.begin_round(self._all)
        load = Load(rig.web_port, STORES, self._aggregates, threads=2, seed=self._dice.randrange(10**6))
        try:
            load.resume()
            time.sleep(_CALM_S)
            if self._disturbed:
                self._dice.choice((rig.kill_child, rig.end_connections))()
                rig.wait_ready()
            self._fail_over(load)
            time.sleep(_CALM_S)
        except (TimeoutError, AssertionError, psycopg.Error) as error:
            verdict.faults.append(f"{type(error).__name__}: {error}")
        finally:
            for gate in self._gates:
                rig.open_gate(gate)
            load.pause()
            load.stop()
        self._noting(self._drain)
        acknowledged = [write for client in (*load.clients, *self._clients) for write in client.acknowledged]
        examine(rig, verdict, acknowledged, self._all, synchronous=self._scene.synchronous)
        verdict.faults += rig.ended()
        return verdict

    def _fail_over(self, load: Load) -> None:
        scene, servers, rig = self._scene, self._rig.servers, self._rig
        client = self._client("before")
        with ExitStack() as stack:
            if not scene.synchronous:
                servers.hold_back()
            if scene.newcomers:
                rig.start_one("second worker")
                rig.wait_ready()
            self._hold(client, stack)
            if scene.casualties:
                rig.kill_child()
            if scene.end == "killed":
                servers.kill_primary()
                if scene.silent:
                    # A backend's last words that are under way would be held, and their client would wait for more.
                    self._old_host().break_open()
                    self._old_host().silence()
            elif scene.end == "frozen":
                servers.freeze_primary()
            elif scene.end == "read-only":
                if scene.synchronous:
                    load.pause()
                servers.make_read_only()
                if scene.synchronous:
                    servers.catch_up()
            else:
                load.pause()
                servers.catch_up()
                servers.primary.stop()
            if scene.end != "frozen":
                load.pause()
            old = servers.primary
            servers.promote(move=False)
            if scene.end == "behind":
                old.demote()
                load.resume()
                time.sleep(_BEHIND_S)
            if scene.end != "frozen":
                self._reuse(self._client("reuse"))
            cut = scene.end == "killed"
            servers.move(cut=cut and not scene.hosts)
        since = time.monotonic()
        if scene.end == "frozen":
            time.sleep(_FROZEN_S)
            servers.fence()
            since = time.monotonic()
        elif scene.end == "read-only" and scene.synchronous:
            # There a commit waits for a standby that is gone, as long as the server lives.
            time.sleep(_FROZEN_S)
            servers.standby.stop()
            since = time.monotonic()
        load.resume()
        try:
            self._heal(since)
        finally:
            if scene.silent:
                self._old_host().answer()

    def _hold(self, client: Client, stack: ExitStack) -> None:
        """Have jobs run that do not end, and messages sent whose mark waits for a lock, with numbers that are lost."""
        rig = self._rig
        for _ in range(_BEYOND // BATCH):
            client.insist("batch", messages=self._orders * BATCH)
        held = [client.insist(kind, key=self._gates[0]).marker for kind in _HELD]
        wait_for(lambda: set(held) <= set(rig.runs()), "the jobs to be held do not run")
        locker = stack.enter_context(rig.connect())
        # A failover ends it in the midst of its transaction.
        stack.callback(partial(_close, locker))
        locker.execute("BEGIN")
        locker.execute("LOCK TABLE salon_jobs_blocked_aggregate IN SHARE MODE")
        client.insist("none", messages=self._orders * _SENT)
        client.insist("none", messages=[self._fresh])
        self._wait_sent("orders", self._orders[0][1], _BEYOND + _SENT)
        self._wait_sent(*self._fresh, 1)
        with rig.connect() as connection:
            query = "SELECT id FROM salon_jobs_job WHERE state = 'running' AND task = ANY (%s)"
            self._held = [row[0] for row in connection.execute(query, [list(_TASK_OF.values())]).fetchall()]
            self._last = _last(connection, "salon_jobs_message")

    def _reuse(self, client: Client) -> None:
        """Write to the new primary, before the others can reach it, until the lost numbers are in use again."""
        if self._scene.synchronous:
            return
        rig = self._rig
        client.insist("none")
        held, most = set(self._held), max(self._held, default=0)
        reused = 0
        with rig.connect() as connection:
            while (following := _last(connection, "salon_jobs_job") + 1) <= most:
                if following in held:
                    client.insist(self._dice.choice(_REUSING), key=self._gates[1])
                    reused += connection.execute("SELECT 1 FROM salon_jobs_job WHERE id = %s", [following]).rowcount
                else:
                    client.insist("store" if held & set(range(following, following + BATCH)) else "batch")
            while _last(connection, "salon_jobs_message") < self._last:
                client.insist("none", messages=[*self._orders * BATCH, self._fresh])
        self.verdict.reused = reused
        if not reused:
            self.verdict.faults.append("no number of a running job was given out again: the scene shows nothing")

    def _heal(self, since: float) -> None:
        """Measure until requests succeed, jobs are done, messages are sent and every process is ready."""
        verdict, number = self.verdict, self._number
        clients = [self._client(name) for name in ("requests", "jobs", "messages")]

        def requests() -> None:
            clients[0].insist("none", patience_s=_HEALING_S)
            verdict.requests_s = time.monotonic() - since

        def jobs() -> None:
            marker = clients[1].insist("store", patience_s=_HEALING_S).marker
            with self._rig.connect() as connection:
                query = "SELECT count(*) FROM failover_done WHERE marker = %s"
                wait_for(
                    lambda: connection.execute(query, [marker]).fetchall() == [(1,)], "no new job is done", _HEALING_S
                )
            verdict.jobs_s = time.monotonic() - since

        def messages() -> None:
            clients[2].insist("none", messages=[("orders", f"r{number}probe")], patience_s=_HEALING_S)
            self._wait_sent("orders", f"r{number}probe", 1, patience_s=_HEALING_S)
            verdict.messages_s = time.monotonic() - since

        threads = [threading.Thread(target=self._noting, args=(what,)) for what in (requests, jobs, messages)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The old runs end while the new ones with their numbers are running.
        self._rig.open_gate(self._gates[0])
        if not self._rig.ended():
            self._rig.wait_ready()
            verdict.ready_s = self._rig.readiness.healed_s(since)

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (TimeoutError, psycopg.Error) as error:
            self.verdict.faults.append(f"{work.__name__}: {error}")

    def _drain(self) -> None:
        # The schedule goes on.
        live = (
            "SELECT count(*) FROM salon_jobs_job WHERE state IN ('queued', 'running') AND task LIKE 'failover-%%'"
            " AND task <> 'failover-second'"
        )
        unsent = "SELECT count(*) FROM salon_jobs_message WHERE status = 'pending' AND aggregate_id = ANY (%s)"
        with self._rig.connect() as connection:
            wait_for(lambda: connection.execute(live, []).fetchall() == [(0,)], "some jobs never end")
            wait_for(lambda: connection.execute(unsent, [self._all]).fetchall() == [(0,)], "some messages stay pending")
        due = self._rig.ticks()
        with suppress(TimeoutError):
            wait_for(lambda: not self._rig.undone(due), "", _FIRED_S)
        missed = self._rig.undone(due)
        self.verdict.missed = len(missed)
        self.verdict.faults += [f"{tick} was never done" for tick in sorted(missed)]

    def _wait_sent(self, destination: str, aggregate: str, number: int, patience_s: float = PATIENCE_S) -> None:
        wait_for(
            lambda: self._rig.last_of(f"{destination}.{aggregate}") >= number,
            f"message {number} of {aggregate} is not sent",
            patience_s,
        )

    def _old_host(self) -> Any:
        new = port_of(self._rig.servers.primary)
        standby = port_of(self._rig.servers.standby)
        killed = standby if self._rig.servers.standby.pid is None else new
        return next(host for host in self._rig.servers.hosts if host.target_port == killed)

    def _client(self, name: str) -> Client:
        client = Client(self._rig.web_port, f"{name}-{self._number}", STORES)
        self._clients.append(client)
        return client


def _last(connection: psycopg.Connection[Any], table: str) -> int:
    """Return the last number that the table's sequence gave out."""
    query = "SELECT last_value FROM pg_sequences WHERE sequencename = %s"
    [(last,)] = connection.execute(query, [f"{table}_id_seq"]).fetchall()
    return int(last or 0)


def _close(connection: psycopg.Connection[Any]) -> None:
    with suppress(psycopg.Error):
        connection.close()
