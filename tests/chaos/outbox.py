"""Chaos of the outbox: ``python -m tests.chaos.outbox --seconds 600 --seed 7 --json FILE``.

Writers emit under row locks, so that the order of each aggregate is known; relays publish to a real NATS JetStream.
Exits with 0 if the stream holds everything that was committed, once and in that order; otherwise keeps the logs and
exits with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.processes import environment, manage
from benchmarks.server import Database
from project.local.nats import NatsServer
from project.local.postgres import EmbeddedPostgres
from tests.chaos.running import options_of, serve, start

_DESTINATION: Final = "rn::nats:::orders"
_AGGREGATES: Final = [f"a{number}" for number in range(40)]
_TOO_LARGE: Final = 2_000_000
_RELAYS: Final = 3
_WRITERS: Final = 4
_OWNERSHIP_S: Final = 3
_DRAIN_S: Final = 90.0
_EMIT: Final = b"SELECT salon_jobs_emit(%s, %s, 'counted', json_build_object('number', %s::int), wake => %s)"


class Writers:
    """Threads that increment the counters of aggregates under their row locks, with savepoints and rollbacks."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._seed = url, seed
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(_WRITERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the open transactions."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        dice = random.Random(self._seed * 100 + number)
        while not self._stop.is_set():
            # The database comes and goes; its counters say what was committed.
            with suppress(psycopg.Error), psycopg.connect(self._url, connect_timeout=5) as connection:
                while not self._stop.is_set():
                    self._transaction(connection, dice)
            self._stop.wait(0.1)

    def _transaction(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        for aggregate in sorted(dice.sample(_AGGREGATES, dice.randint(1, 3))):
            connection.execute("SAVEPOINT s")
            count_and_emit(connection, aggregate, wake=dice.random() < 0.5)
            connection.execute("ROLLBACK TO SAVEPOINT s" if dice.random() < 0.2 else "RELEASE SAVEPOINT s")
        self._stop.wait(dice.choice((0, 0, 0.002, 0.02)))
        (connection.rollback if dice.random() < 0.1 else connection.commit)()


def count_and_emit(connection: psycopg.Connection[Any], aggregate: str, *, wake: bool = False) -> None:
    """Increment the counter of an aggregate and emit the number, in the connection's transaction."""
    [(number,)] = connection.execute(
        "UPDATE counted SET number = number + 1 WHERE name = %s RETURNING number", (aggregate,)
    ).fetchall()
    connection.execute(_EMIT, (_DESTINATION, aggregate, number, wake))


@dataclass(slots=True)
class Scene:
    """Processes and servers that the disturbances act on."""

    server: EmbeddedPostgres
    database: Database
    broker: NatsServer
    folder: Path
    dice: random.Random
    relays: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, subprocess.Popen[bytes]])
    starts: int = 0

    def keep_running(self) -> None:
        """Start every relay that has ended."""
        for number in range(_RELAYS):
            relay = self.relays.get(number)
            if relay is None or relay.poll() is not None:
                self.relays[number] = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        overrides = {
            "PROCESS_SILENT_AFTER": _OWNERSHIP_S,
            "OUTBOX": {
                "PRODUCER": "chaos",
                "POLL_INTERVAL": 0.5,
                "RETRY_BACKOFF": 0.2,
                "FETCH_LIMIT": self.dice.choice((20, 200, 1000)),
            },
            "NATS": {"SERVER": self.broker.url, "TIMEOUT": 2, "RECONNECT_WAIT": 0.1, "RECONNECT_JITTER": 0},
        }
        env = environment(
            DJANGO_SETTINGS_MODULE="tests.chaos.settings",
            WORKER_DATABASE_URL=self.database.url("worker"),
            SALON_JOBS_OVERRIDES=json.dumps(overrides),
        )
        command = manage("relay_outbox", "--health-addr", "127.0.0.1:0", "--log-format", "json")
        return start(command, env, self.folder / f"relay-{self.starts}.log")

    def one(self) -> subprocess.Popen[bytes]:
        """Choose a running relay."""
        return self.dice.choice([relay for relay in self.relays.values() if relay.poll() is None])

    def end(self) -> None:
        for relay in self.relays.values():
            relay.send_signal(signal.SIGCONT)
            relay.kill()
            relay.wait()


def kill_relay(scene: Scene) -> None:
    """Kill a relay three times, whatever it is doing."""
    for _ in range(3):
        relay = scene.one()
        relay.kill()
        relay.wait()
        scene.keep_running()
        time.sleep(scene.dice.uniform(0.8, 2))


def stop_relay(scene: Scene) -> None:
    """Ask a relay to stop."""
    relay = scene.one()
    relay.terminate()
    assert relay.wait(35) == 0, "a relay that was asked to stop did not end cleanly"


def freeze_relay(scene: Scene) -> None:
    """Freeze a relay for longer than it owns its partitions, then let it continue."""
    relay = scene.one()
    relay.send_signal(signal.SIGSTOP)
    time.sleep(_OWNERSHIP_S * scene.dice.uniform(0.5, 2.5))
    relay.send_signal(signal.SIGCONT)


def stop_broker(scene: Scene) -> None:
    """Stop the broker, or kill it, and start it again."""
    scene.dice.choice((scene.broker.stop, scene.broker.kill))()
    time.sleep(scene.dice.uniform(0.2, 3))
    scene.broker.start()


def restart_database(scene: Scene) -> None:
    """Restart the database, or crash it."""
    scene.dice.choice((scene.server.stop, scene.server.kill))()
    time.sleep(scene.dice.uniform(0, 2))
    scene.server.start()


def end_connections(scene: Scene) -> None:
    """End every connection of the relays, marker and listener included."""
    for _ in range(3):
        scene.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = 'worker_runtime' AND datname = current_database()"
        )
        time.sleep(scene.dice.uniform(0.1, 0.8))


def hold_gate(scene: Scene) -> None:
    """Hold the gate for seconds."""
    with psycopg.connect(scene.database.superuser_url) as connection:
        count_and_emit(connection, "slow")
        time.sleep(scene.dice.uniform(1, 3))


def refuse_messages(scene: Scene) -> None:
    """Emit a message that the broker never accepts, and one that waits behind it forever."""
    name = f"bad{secrets.token_hex(4)}"
    with psycopg.connect(scene.database.superuser_url) as connection:
        for size in (1, _TOO_LARGE, 1):
            payload = json.dumps({"text": "x" * size})
            connection.execute("SELECT salon_jobs_emit(%s, %s, 'e', %s::json)", (_DESTINATION, name, payload))


DISTURBANCES: Final[Sequence[Callable[[Scene], None]]] = (
    kill_relay,
    freeze_relay,
    stop_broker,
    restart_database,
    end_connections,
    hold_gate,
    refuse_messages,
    stop_relay,
)


def main(arguments: Sequence[str]) -> int:
    """Run for the given time, and every disturbance at least once."""
    options = options_of("tests.chaos.outbox", __doc__).parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="salon-chaos-outbox-"))
    with ExitStack() as stack:
        server, database = serve(stack, max_connections="80")
        broker = stack.enter_context(NatsServer())
        database.execute("CREATE TABLE counted (name text PRIMARY KEY, number int NOT NULL DEFAULT 0)")
        database.execute("INSERT INTO counted (name) SELECT unnest(%s::text[])", [*_AGGREGATES, "slow"])
        broker.stream("orders")
        scene = Scene(server, database, broker, folder, random.Random(options.seed))
        stack.callback(scene.end)
        figures, faults = _run(scene, options)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if options.json:
        options.json.write_text(json.dumps({**figures, "faults": faults}))
    if faults:
        sys.stdout.write("\n".join([*faults[:20], f"The logs are in {folder}", ""]))
        return 1
    shutil.rmtree(folder)
    return 0


def _run(scene: Scene, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    scene.keep_running()
    writers = Writers(scene.database.superuser_url, options.seed)
    writers.start()
    until = time.monotonic() + options.seconds
    times = Counter[str]()
    faults: list[str] = []
    while time.monotonic() < until or len(times) < len(DISTURBANCES):
        for disturb in scene.dice.sample(DISTURBANCES, len(DISTURBANCES)):
            time.sleep(scene.dice.uniform(0.2, 2))
            try:
                disturb(scene)
            except AssertionError as error:
                faults.append(f"{disturb.__name__}: {error}")
            times[disturb.__name__] += 1
            scene.keep_running()
            if time.monotonic() > until and len(times) == len(DISTURBANCES):
                break
    writers.stop()
    began = time.monotonic()
    faults += _drained(scene)
    figures: dict[str, Any] = {
        "seed": options.seed,
        "disturbances": dict(times),
        "relays_started": scene.starts,
        "drained_in_s": round(time.monotonic() - began, 1),
    }
    messages, found = _examine(scene)
    return {**figures, "messages": messages}, faults + found


def _drained(scene: Scene) -> list[str]:
    """Wait until nothing is pending except behind refused messages; return what is still pending."""
    left = (
        "SELECT m.aggregate_id, m.id, m.retry_count, m.last_error FROM salon_jobs_message m WHERE m.status = 'pending'"
        "   AND m.aggregate_id NOT LIKE 'bad%' ORDER BY m.id LIMIT 10"
    )
    deadline = time.monotonic() + _DRAIN_S
    with scene.database.connect() as connection:
        while found := connection.execute(left).fetchall():
            if time.monotonic() > deadline:
                return [f"still pending after {_DRAIN_S:.0f} s: {row}" for row in found]
            time.sleep(0.2)
            scene.keep_running()
    return []


def _examine(scene: Scene) -> tuple[int, list[str]]:
    """Compare the stream with the counters; return how many messages it holds, and what is wrong."""
    stored = scene.broker.messages("orders")
    arrived: dict[str, list[int]] = {}
    for subject, _, body in stored:
        name = subject.partition(".")[2]
        arrived.setdefault(name, []).append(json.loads(body).get("number", 0))
    faults: list[str] = []
    repeated = Counter(headers["Nats-Msg-Id"] for _, headers, _ in stored)
    faults += [f"{message_id} is there {count} times" for message_id, count in repeated.items() if count > 1]
    with scene.database.connect() as connection:
        for name, last in connection.execute("SELECT name, number FROM counted").fetchall():
            if (numbers := arrived.get(name, [])) != list(range(1, last + 1)):
                missing = sorted(set(range(1, last + 1)) - set(numbers))
                wrong = [pair for pair in pairwise(numbers) if pair[0] >= pair[1]]
                faults.append(f"{name}: {len(numbers)} of {last}, missing {missing[:5]}, out of order {wrong[:5]}")
        for name, numbers in arrived.items():
            if name.startswith("bad") and len(numbers) != 1:
                faults.append(f"{name}: a message behind a refused one was sent")
    return len(stored), faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
