"""Everything to look at: web process, worker, scheduler, relay and consumer run until Ctrl-C."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from project.demo.processes import DemoFailed, Processes
from project.demo.server import DemoDatabase, all_rows
from project.demo.slow_api import allow_sockets
from project.demo.steps import bootstrap, worker_environment
from project.local.nats import NatsServer
from project.local.ports import free_port
from project.local.smtp import LocalSmtp
from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants

_LOGIN: Final = "operator"
_SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "runscheduler": (),
    "relay_outbox": (),
    # The other consumer reads from Azurite, which npm would have to install.
    "consume_queue": ("confirmations",),
    "runworker": ("--async-concurrency", "2000"),  # for the command call_slow_api
}
_PAUSED: Final = "exports"
# A stream that takes only small messages.
_INVOICES: Final = "invoices"
_STORES: Final = 6
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 90.0


def create(database: DemoDatabase) -> None:
    """Create the roles, the tables and the rows of the stores, in an empty database."""
    with tempfile.TemporaryDirectory(prefix="salon_demo_") as logs, Processes(Path(logs)) as processes:
        bootstrap(processes, database)
        processes.run("migrate", environment={"DATABASE_URL_MIGRATOR": database.url("migrator")})
    with database.connect() as connection, all_rows(connection):
        load(connection, make_demo_data(DemoInstants.at(datetime.now(UTC))))


def serve(console: Console, database: DemoDatabase) -> None:
    """Create a login, start every process as its role, prepare what there is to see, and wait for Ctrl-C."""
    allow_sockets()
    password = secrets.token_urlsafe(12)
    address = f"127.0.0.1:{free_port()}"
    with (
        tempfile.TemporaryDirectory(prefix="salon_demo_") as logs,
        LocalSmtp() as smtp,
        NatsServer() as nats,
        Processes(Path(logs)) as processes,
    ):
        bootstrap(processes, database)
        migrator = {"DATABASE_URL_MIGRATOR": database.url("migrator")}
        processes.run("migrate", environment=migrator)
        processes.run("create_demo_operator", _LOGIN, environment=migrator, stdin=f"{password}\n")
        smtp.up()
        nats.stream("reservations")
        nats.stream(_INVOICES, max_msg_size=10_000)
        web = {"DATABASE_URL": database.url("web"), "OPERATOR_DATABASE_URL": database.url("operator")}
        ready = _start(processes, address, web, worker_environment(database, smtp, nats))
        stores = _stores(database)
        _prepare(processes, database, web, stores)
        processes.start("enqueue_now_and_then", *stores, environment=web)
        console.print(f"\nDashboard: [bold]http://{address}/admin/salon_jobs/dashboard/[/]", soft_wrap=True)
        console.print(f"Login:     [bold]{_LOGIN}[/]  password: [bold]{password}[/]")
        console.print(
            "Commands:  [bold].venv/bin/python -m project.demo.manage salon_jobs status[/] and any other",
            soft_wrap=True,
        )
        for service, url in ready.items():
            console.print(f"Readiness: {url} ({service})", soft_wrap=True)
        console.print("Jobs arrive every second or two.")
        console.print("Worker, scheduler, relay, consumer and NATS are running. Ctrl-C ends them all.")
        try:
            while True:
                processes.check()
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            console.print("Stopping…")


def _start(processes: Processes, address: str, web: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Start the services and the web process; return the addresses of the services' readiness when all answer."""
    urls: dict[str, str] = {}
    for command, names in _SERVICES.items():
        health = f"127.0.0.1:{free_port()}"
        urls[command] = f"http://{health}/readyz"
        processes.start(command, *names, "--health-addr", health, environment=worker)
    secret = {"SECRET_KEY": secrets.token_urlsafe(50)}
    processes.start("runserver", "--noreload", "--insecure", address, environment={**web, **secret})
    for command, url in {**urls, "runserver": f"http://{address}/admin/login/"}.items():
        processes.wait_until_answers(command, url)
    return urls


def _stores(database: DemoDatabase) -> list[str]:
    """Return the options of commands that name some stores."""
    with database.connect() as connection, all_rows(connection):
        rows = connection.execute("SELECT id FROM public.store ORDER BY id LIMIT %s", [_STORES]).fetchall()
    return [text for (store,) in rows for text in ("--store", str(store))]


def _prepare(processes: Processes, database: DemoDatabase, web: Mapping[str, str], stores: Sequence[str]) -> None:
    """Pause a queue with jobs, let jobs succeed and fail, and park a message; only once per database."""
    with database.connect_operator() as connection:
        query = "SELECT EXISTS (SELECT FROM public.salon_jobs_limit WHERE name = %s)"
        if connection.execute(query, [_PAUSED]).fetchall()[0][0]:
            return
        processes.run("salon_jobs", "pause", "--queue", _PAUSED, environment=web)
        processes.run("enqueue_examples", "--invoices", f"rn::nats:::{_INVOICES}", *stores, environment=web)
        processes.run("confirm_reservations", *stores, environment=web)
        deadline = time.monotonic() + _PATIENCE_S
        parked = "SELECT EXISTS (SELECT FROM public.salon_jobs_blocked_aggregate WHERE status = 'parked')"
        due = "SELECT EXISTS (SELECT FROM public.salon_jobs_job WHERE task = 'charge-card' AND state <> 'failed')"
        while not connection.execute(parked).fetchall()[0][0] or connection.execute(due).fetchall()[0][0]:
            processes.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"the prepared jobs and messages were not done within {_PATIENCE_S:.0f} s")
            time.sleep(0.1)
