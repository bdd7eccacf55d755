"""Steps of the demo, from an empty database to the verdict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from project.demo.processes import DemoFailed, Processes
from project.demo.report import print_figures, print_messages, print_verdict
from project.demo.server import DemoDatabase, all_rows
from project.demo.verify import Invite, Problem, Verifier
from project.demo.verify_messages import MessageFigures, MessageVerifier, UploadVerifier
from project.demo.worker_log import WorkerLog
from project.local.azurite.server import Azurite
from project.local.nats import NatsServer
from project.local.ports import free_port
from project.local.smtp import REJECTED_DOMAIN, LocalSmtp
from project.salon.demo_data import STORES, DemoData, load, make_demo_data
from project.salon.demo_instants import DemoInstants

_INVITED: Final = 40
_REJECTED: Final = 3
_REJECTED_ATTEMPTS: Final = 3
# For each of its waits: a machine that does ten other things takes a minute to confirm all reservations.
_PATIENCE_S: Final = 180.0
_SERVICES: Final = ("runscheduler", "relay_outbox", "consume_queue", "runworker")
# Jobs, and messages that are not jobs yet: unpublished, or not received.
WAITING: Final = """
    SELECT (SELECT count(*) FROM public.salon_jobs_job WHERE state IN ('queued', 'running'))
         + (SELECT count(*) FROM public.salon_jobs_message) - (SELECT count(*) FROM public.salon_jobs_inbox)
"""
_SOME_PUBLISHED: Final = "SELECT count(*) >= 200 FROM public.salon_jobs_message WHERE status = 'published'"
_OUTAGE_NOTED: Final = "SELECT coalesce(bool_or(outage_code <> ''), false) FROM public.salon_jobs_destination"
_PENDING: Final = """
    SELECT count(*) FROM public.salon_jobs_message WHERE status = 'pending' AND event = 'reservation.confirmed'
"""
_QUEUE: Final = "parse-tasks"
_PASSWORD_VARIABLES: Final = {
    "migrator": "MIGRATOR_PASSWORD",
    "web": "APP_PASSWORD",
    "worker": "WORKER_RUNTIME_PASSWORD",
    "operator": "JOBS_OPERATOR_PASSWORD",
}


def run_demo(console: Console, database: DemoDatabase) -> bool:
    """Run every step and print the report; return whether everything was verified.

    Raises DemoFailed. Ends its processes.
    """
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="salon_demo_") as logs,
        LocalSmtp() as smtp,
        NatsServer() as nats,
        closing(Azurite()) as azurite,
        ThreadPoolExecutor(1) as starting,
        Processes(Path(logs)) as processes,
        database.connect() as connection,
        _progress(console) as progress,
    ):
        # In parallel with the first steps, because npm may have to install it.
        started = starting.submit(_start, azurite)
        run = _Run(database, processes, smtp, nats, azurite, connection, progress)
        problems, rows_changed = run.all(started)
    print_figures(console, run.log.tasks, rows_changed)
    print_messages(console, run.messages)
    print_verdict(console, problems, stores=STORES, rows=len(run.data))
    console.print(
        f"{smtp.mails.total()} mails arrived after the mail server came up; {_REJECTED} jobs failed for good, as they "
        f"had to: their addresses are refused.\nNATS was down for {run.nats_down_s:.1f} s. "
        f"Whole run: {time.monotonic() - began:.1f} s."
    )
    return not problems


def bootstrap(processes: Processes, database: DemoDatabase) -> None:
    """Create the roles, or change the passwords of those that an earlier run left."""
    passwords = {variable: database.passwords[role] for role, variable in _PASSWORD_VARIABLES.items()}
    options = ("--share-roles",) if database.shares_roles else ("--change-passwords", "--yes")
    environment = {"DATABASE_URL_BOOTSTRAP": database.bootstrap_url, **passwords}
    processes.run("bootstrap_roles", *options, environment=environment)


def worker_environment(database: DemoDatabase, smtp: LocalSmtp, nats: NatsServer) -> dict[str, str]:
    """Return the environment of processes that connect as the worker role."""
    return {
        "WORKER_DATABASE_URL": database.url("worker"),
        "EMAIL_HOST": "127.0.0.1",
        "EMAIL_PORT": str(smtp.port),
        "NATS_SERVER": nats.url,
        "NATS_RECONNECT_WAIT": "0.1",
    }


def _start(azurite: Azurite) -> None:
    azurite.start()
    azurite.create_queue(_QUEUE)


class _Run:
    """One run. Each step is one line of the progress display."""

    def __init__(
        self,
        database: DemoDatabase,
        processes: Processes,
        smtp: LocalSmtp,
        nats: NatsServer,
        azurite: Azurite,
        connection: psycopg.Connection[Any],
        progress: Progress,
    ) -> None:
        self._database = database
        self._processes = processes
        self._smtp = smtp
        self._nats = nats
        self._azurite = azurite
        self._connection = connection
        self._progress = progress
        self._worker = {
            **worker_environment(database, smtp, nats),
            "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string,
        }
        self._confirmed = self._rolled_back = self._waited = 0
        self._uploaded = self._uploads_rolled_back = 0
        self._down_since = self.nats_down_s = 0.0
        self.messages: dict[str, MessageFigures] = {}
        self.data = DemoData()
        self.log: WorkerLog
        self._operator: psycopg.Connection[Any]

    def all(self, azurite_started: Future[None]) -> tuple[list[Problem], dict[str, int]]:
        """Run the steps in order; return the problems, and how many rows each task changed."""
        with self._step("bootstrap the roles"):
            bootstrap(self._processes, self._database)
        with self._step("migrate"):
            self._processes.run("migrate", environment={"DATABASE_URL_MIGRATOR": self._database.url("migrator")})
        with self._step("compare the database with what is declared"):
            urls = {"DATABASE_URL": self._database.url("web"), "OPERATOR_DATABASE_URL": self._database.url("operator")}
            self._processes.run("salon_jobs", "doctor", "--fail", environment=urls)
        instants = DemoInstants.at(self._connection.execute("SELECT now()").fetchall()[0][0])
        self._create_data(instants)
        invites = self._invites()
        verifier = Verifier(self._connection, instants)
        with self._step("compute what must change"), all_rows(self._connection):
            verifier.prepare(invites)
        with self._step("wait for Azurite (npm installs it once)"):
            azurite_started.result()
        with self._step("start worker, scheduler, relay and consumer"):
            self._nats.stream("reservations")
            self._start_processes()
        with self._database.connect_operator() as self._operator:
            self._confirm_and_invite(invites)
            self._fire_crontab(instants)
            self._wait_until_idle()
        with self._step("stop them"):
            self._stop_processes()
        with self._step("verify every store and message"), all_rows(self._connection):
            return [
                *verifier.problems(invites, self._smtp, self.log),
                *self._verify_messages(),
            ], verifier.rows_changed()

    def _create_data(self, instants: DemoInstants) -> None:
        self.data = make_demo_data(instants)
        with self._step(f"create {STORES} stores", total=len(self.data)) as advance, all_rows(self._connection):
            load(self._connection, self.data, on_rows=advance)

    def _invites(self) -> list[Invite]:
        stores = [record["id"] for record in self.data.records("store")]
        invited = [Invite(stores[n], f"new.operator.{n}@chain.example", False) for n in range(_INVITED)]
        return invited + [Invite(stores[-1 - n], f"typo.{n}@{REJECTED_DOMAIN}", True) for n in range(_REJECTED)]

    def _start_processes(self) -> None:
        urls: dict[str, str] = {}
        for command in _SERVICES:
            address = f"127.0.0.1:{free_port()}"
            urls[command] = f"http://{address}/readyz"
            path = self._processes.start(command, "--health-addr", address, environment=self._worker)
            if command == "runworker":
                self.log = WorkerLog(path)
        for command, url in urls.items():
            self._processes.wait_until_answers(command, url)

    def _confirm_and_invite(self, invites: list[Invite]) -> None:
        """Confirm reservations while NATS is down, then invite while the mail server is down too."""
        stores = [text for record in self.data.records("store") for text in ("--store", str(record["id"]))]
        web = {"DATABASE_URL": self._database.url("web")}
        with ThreadPoolExecutor(2) as threads:
            with self._step("confirm reservations, until NATS goes down"):
                confirming = threads.submit(self._processes.run, "confirm_reservations", *stores, environment=web)
                self._wait_for(_SOME_PUBLISHED, "messages to be published", unless=confirming.done)
                self._nats.stop()
                self._down_since = time.monotonic()
            uploading = threads.submit(self._processes.run, "upload_files", *stores, environment=web)
            self._invite(invites)
            with self._step("upload a file of each store (to Azurite)"):
                self._uploaded, self._uploads_rolled_back = map(int, uploading.result().split())
            with self._step("confirm the others (NATS still down)"):
                self._confirmed, self._rolled_back = map(int, confirming.result().split())
                self._wait_for(_OUTAGE_NOTED, "the relay to miss NATS")
        self._waited = self._operator.execute(_PENDING).fetchall()[0][0]
        self._nats.start()
        self.nats_down_s = time.monotonic() - self._down_since

    def _wait_for(self, query: LiteralString, what: str, *, unless: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._operator.execute(query).fetchall()[0][0] and not unless():
            self._processes.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"gave up after waiting {_PATIENCE_S:.0f} s for {what}")
            time.sleep(0.05)

    def _verify_messages(self) -> list[Problem]:
        stored = self._nats.messages("reservations")
        messages = MessageVerifier(self._connection, stored, self.log.tasks["record-confirmation"])
        with self._azurite.queue(_QUEUE) as queue:
            left = queue.get_queue_properties().approximate_message_count or 0
        uploads = UploadVerifier(self._connection, self.log.tasks["parse-upload"], left=left)
        self.messages = {
            "reservation.confirmed": messages.figures(
                confirmed=self._confirmed, rolled_back=self._rolled_back, waited=self._waited
            ),
            "file.uploaded": uploads.figures(uploaded=self._uploaded, rolled_back=self._uploads_rolled_back),
        }
        return [*messages.problems(), *uploads.problems()]

    def _invite(self, invites: list[Invite]) -> None:
        web = {"DATABASE_URL": self._database.url("web")}
        commands: list[tuple[str, ...]] = [("ping",)]
        for rejected, options in ((False, ()), (True, ("--max-attempts", str(_REJECTED_ATTEMPTS)))):
            chosen = [invite for invite in invites if invite.rejected is rejected]
            pairs = [text for invite in chosen for text in ("--to", str(invite.store_id), invite.email)]
            commands.append(("invite_operator", *pairs, *options))
        with self._step("invite operators (mail server down, too)", total=len(invites)) as advance:
            with ThreadPoolExecutor(len(commands)) as threads:
                list(threads.map(lambda command: self._processes.run(*command, environment=web), commands))
            advance(self._wait_for_retries(len(invites)))
        self._smtp.up()

    def _wait_for_retries(self, wanted: int) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        figures = self.log.tasks["send-operator-invitation-email"]
        while figures.outcomes["retried"] < wanted:
            self._processes.check()
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"{figures.outcomes['retried']} of {wanted} mails were retried while the server was down"
                )
            time.sleep(0.05)
            self.log.read()
        return wanted

    def _fire_crontab(self, instants: DemoInstants) -> None:
        def fire(tick: datetime) -> None:
            at = tick.astimezone(UTC).isoformat()
            self._processes.run("runscheduler", "--burst", "--at", at, environment=self._worker)

        total = len(instants.ticks)
        with self._step("fire the crontab (both up again)", total=total) as advance, ThreadPoolExecutor(2) as threads:
            for _ in threads.map(fire, instants.ticks):
                advance(1)

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        bar = self._progress.add_task("run the jobs", total=None)
        while True:
            self._processes.check()
            waiting: int = self._operator.execute(WAITING).fetchall()[0][0]
            self.log.read()
            ended = self.log.ended()
            self._progress.update(bar, completed=ended, total=ended + waiting)
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"{waiting} jobs were still waiting or running after {_PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def _stop_processes(self) -> None:
        for command, status in self._processes.stop(*_SERVICES).items():
            if status:
                raise DemoFailed(f"{command} ended with status {status} when asked to stop")
        self.log.read()

    @contextmanager
    def _step(self, text: str, *, total: int = 1) -> Iterator[Callable[[int], None]]:
        bar = self._progress.add_task(text, total=total)
        yield lambda count: self._progress.update(bar, advance=count)
        self._progress.update(bar, completed=total)


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)
