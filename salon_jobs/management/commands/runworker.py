"""Run jobs: ``python manage.py runworker``."""

from __future__ import annotations

import argparse
import difflib
import logging
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.units import with_noun
from salon_jobs.inbox.consumer import Consumers
from salon_jobs.jobs import registry
from salon_jobs.management.arguments import positive, unknown_names
from salon_jobs.management.service import ServiceCommand, configure_output
from salon_jobs.outbox.relay import EmbeddedRelay
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.processors import memory_in_use_mb, usable_processors
from salon_jobs.process.service import ServedLoop
from salon_jobs.schedules.scheduler import EmbeddedScheduler
from salon_jobs.worker.child import run_child
from salon_jobs.worker.supervisor import Supervisor, connections_of, count_processes
from salon_jobs.worker.worker import WorkerOptions


class Command(ServiceCommand):
    """Command that runs one supervisor and its workers."""

    help = "Run jobs until SIGTERM or SIGINT (a second one forces the end). Connects as the worker role."
    alias = "worker"
    health_port = 8080
    burst_help = "run until nothing is due"

    def add_arguments(self, parser: CommandParser) -> None:
        queues = parser.add_mutually_exclusive_group()
        queues.add_argument("--queue", action="append", metavar="NAME", help="serve this queue only; repeatable")
        queues.add_argument(
            "--exclude-queue", action="append", default=[], metavar="NAME", help="serve all but this queue; repeatable"
        )
        parser.add_argument(
            "--concurrency", type=positive, default=None, metavar="N", help="how many jobs each process runs at once"
        )
        parser.add_argument(
            "--async-concurrency",
            type=positive,
            default=None,
            metavar="N",
            help="how many jobs with async handlers it runs at once beside them; they hold no thread while they wait",
        )
        parser.add_argument(
            "--processes",
            type=positive,
            metavar="N",
            help=(
                "how many processes run jobs; default SALON_JOBS['PROCESSES'], or one for each usable processor, as"
                " far as connections allow"
            ),
        )
        parser.add_argument(
            "--max-jobs-per-child",
            type=positive,
            metavar="N",
            help="replace a process after N jobs; default SALON_JOBS['MAX_JOBS_PER_CHILD']",
        )
        parser.add_argument("--with-scheduler", action="store_true", help="fire cron entries too")
        parser.add_argument("--with-relay", action="store_true", help="publish messages too")
        parser.add_argument("--with-consumer", action="store_true", help="turn messages into jobs too")
        parser.add_argument("--child", help=argparse.SUPPRESS)
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the supervisor, or one of the processes that a supervisor starts with ``--child``."""
        if options["child"]:
            configure_output(options)
            run_child(options["child"])
        super().handle(*args, **options)

    def serve(self, options: dict[str, Any]) -> None:
        worker_options = WorkerOptions(
            concurrency=options["concurrency"] or conf.concurrency,
            async_concurrency=options["async_concurrency"] or conf.async_concurrency,
            queues=options["queue"],
            excluded=options["exclude_queue"],
            burst=options["burst"],
            max_jobs=options["max_jobs_per_child"] or conf.max_jobs_per_child,
        )
        asked = options["processes"] or conf.processes
        processes = count_processes(asked, worker_options, using=self.using)
        wanted = asked or usable_processors()

        def make_loop(heartbeat: Heartbeat) -> Supervisor:
            embedded: list[ServedLoop] = []
            if options["with_scheduler"]:
                embedded.append(EmbeddedScheduler(heartbeat))
            if options["with_relay"]:
                embedded.append(EmbeddedRelay(heartbeat))
            if options["with_consumer"]:
                embedded.append(Consumers(using=heartbeat.using))
            command = self.command_line(options)
            return Supervisor(heartbeat, command, worker_options, processes=processes, embedded=embedded)

        tasks, at_once = len(registry.task_names()), worker_options.concurrency
        coroutines = worker_options.async_concurrency if registry.has_coroutines() else 0
        also_at_once: dict[str, Any] = {"async_concurrency": coroutines} if coroutines else {}
        connections = connections_of(processes, worker_options)
        # Children load the modules of this process, so each is as large until it runs a job.
        memory_mb = (processes + 1) * memory_in_use_mb()
        queues = ", ".join(worker_options.served or ["all"])
        log_event(
            logging.INFO,
            events.WORKER_STARTING,
            tasks=tasks,
            queues=queues,
            processes=processes,
            concurrency=at_once,
            **also_at_once,
            connections=connections,
            memory_mb=memory_mb,
        )
        also = [name for name in ("scheduler", "relay", "consumer") if options[f"with_{name}"]]
        facts = {
            "tasks": f"{tasks:,}",
            "queues": queues,
            "runs": f"{with_noun(at_once, 'job')} at once"
            + (f", and {with_noun(coroutines, 'job')} with async handlers" if coroutines else "")
            + (f" in each of {processes:,} processes" if processes > 1 else ""),
            "takes": f"memory about {memory_mb:,} MB at start; up to {with_noun(connections, 'database connection')}",
            **({"limit": f"as connections allow, not {wanted}; --processes N overrides"} if processes < wanted else {}),
            **({"also": ", ".join(also)} if also else {}),
        }
        if not registry.task_names():
            self.stderr.write(_nothing_declared())
        for note in unknown_names({"queue": options["queue"] or options["exclude_queue"]}):
            self.stderr.write(note if options["queue"] else note.replace("--queue", "--exclude-queue"))
        if options["with_relay"]:
            conf.outbox.require_producer()
        self.run_service("supervisor", make_loop, options, facts=facts, concurrency=0, queues=worker_options.served)


def _nothing_declared() -> str:
    """Return the remedy when no task is declared: the apps searched, and modules with a similar name."""
    without_tasks = ("django.contrib.", "salon_jobs.", "pgtrigger.")
    searched = [app for app in apps.get_app_configs() if not f"{app.name}.".startswith(without_tasks)]
    near = [
        f"{file.parent.name}/{file.name}"
        for app in searched
        for file in sorted(Path(app.path).glob("*.py"))
        # A lower cutoff would include every app's tests.py.
        if file.stem != "tasks" and difflib.get_close_matches(file.stem, ["tasks"], cutoff=0.7)
    ]
    names = ", ".join(app.name for app in searched) or "none except those of Django and salon_jobs"
    return (
        "No task is declared: this worker has nothing to run. Put functions with the decorator @task into the module"
        f" tasks of an app in INSTALLED_APPS. Apps searched: {names}"
        + "".join(f". Rename {file}, or import it in tasks.py, if its tasks are meant" for file in near)
    )
