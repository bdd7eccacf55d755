"""``salon_jobs list``, ``show``, ``cancel`` and ``retry``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.core.redaction import redacted
from salon_jobs.jobs.control import cancel_jobs, retry_jobs
from salon_jobs.jobs.search import JobCriteria, find_jobs, retries_ahead
from salon_jobs.management.arguments import add_options, instant_ahead
from salon_jobs.management.output import change_rows, printable_lines, write_list, write_object
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.models import Job, JobError
from salon_jobs.schedule.scheduler import tick_of

_COLUMNS: Final = (
    "id",
    "task",
    "state",
    "reason",
    "store_id",
    "queue",
    "priority",
    "attempts",
    "run_at",
    "finished_at",
    "error_class",
)


class List(Subcommand):
    """Subcommand that lists the newest matching jobs."""

    name = "list"
    help = "List jobs, newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state", action="append", choices=[state.value for state in JobState], help="in this state; repeatable"
        )
        parser.add_argument("--key", metavar="KEY", help="with this job key")
        parser.add_argument("--error-class", metavar="CLASS", help="failed with this error class, in full")
        add_options(parser, "--task", "--queue", "--store", "--since", "--until", "--limit", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        names = ("task", "queue", "error_class", "since", "until")
        criteria = JobCriteria(
            states=tuple(options["state"] or ()),
            store_id=options["store"],
            job_key=options["key"],
            **{name: options[name] for name in names},
        )
        jobs = find_jobs(criteria, using=conf.reader_database)
        write_list(jobs, _COLUMNS, options, out, err, nothing="no job matches")


class Show(Subcommand):
    """Subcommand that shows everything known about one job."""

    name = "show"
    help = "Show a job with its payload, the error of every attempt, what enqueued it and its upcoming retries."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=int, help="the ID of a job")
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write the job. Raises CommandError when it does not exist."""
        using = conf.reader_database
        job = Job.objects.using(using).filter(pk=options["id"]).first()
        if job is None:
            raise CommandError(
                f"there is no job {options['id']}; jobs that succeed are deleted unless RETAIN_SUCCEEDED keeps them"
            )
        tick: Any = tick_of(job, using=using)
        rows = JobError.objects.using(using).filter(job_id=job.pk).order_by("pk")
        errors = list(rows.values("attempt", "error_class", "code", "message", "traceback", "occurred_at"))
        shown: dict[str, Any] = {
            **{field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields},
            "payload": redacted(job.payload, conf.redact),
            "cron_entry": tick.entry if tick else None,
            "retries_ahead": [asdict(retry) for retry in retries_ahead(job, datetime.now(UTC))],
        }
        write_object({**shown, "errors": errors} if options["json"] else shown, options, out)
        for error in () if options["json"] else errors:
            code = f" ({error['code']})" if error["code"] else ""
            head = f"\nattempt {error['attempt']} at {error['occurred_at']}: {error['error_class']}{code}"
            out.write(printable_lines(f"{head}\n{error['traceback'] or error['message']}"))


class ChangeJobs(Subcommand):
    """Subcommand that changes jobs by ID, or all those of a task, a store or a queue in some states."""

    states: ClassVar[tuple[JobState, ...]]
    done: ClassVar[str]
    verb: ClassVar[Callable[..., list[ActionResult[int]]]]

    def add_arguments(self, parser: CommandParser) -> None:
        what = f"IDs of jobs; or all {' and '.join(self.states)} jobs that match the options"
        parser.add_argument("id", nargs="*", type=int, help=what)
        add_options(parser, "--task", "--store", "--queue", "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        fields = {"task": options["task"], "store_id": options["store"], "queue": options["queue"]}
        criteria = {field: value for field, value in fields.items() if value is not None}
        if bool(options["id"]) == bool(criteria):
            raise CommandError("name the jobs by ids, or by --task, --store and --queue")
        jobs = Job.objects.using(conf.reader_database).filter(state__in=self.states, **criteria).order_by("pk")
        ids: list[int] = list(dict.fromkeys(options["id"]) or jobs.values_list("pk", flat=True))
        verb = partial(self.verb, using=conf.reader_database, **self.arguments(options))
        change_rows(ids, verb, options, out, err, action=self.name.capitalize(), noun="job", done=self.done)

    def arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return further arguments of the verb."""
        return {}


class Cancel(ChangeJobs):
    """Subcommand that cancels jobs by ID, or all queued and running ones of a task, a store or a queue."""

    name = "cancel"
    help = "Cancel jobs: queued and failed ones at once; the worker of a running one is asked to end it."
    states = (JobState.QUEUED, JobState.RUNNING)
    done = "cancelled or asked to end"
    verb = staticmethod(cancel_jobs)


class Retry(ChangeJobs):
    """Subcommand that retries failed and cancelled jobs by ID, or all failed ones of a task, a store or a queue."""

    name = "retry"
    help = "Queue failed and cancelled jobs again, due now or later; exhausted ones get one more attempt."
    states = (JobState.FAILED,)
    done = "queued again"
    verb = staticmethod(retry_jobs)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--at", type=instant_ahead, metavar="TIME", help="when they are due: in 12h, or an ISO 8601 instant"
        )

    def arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"at": options["at"]}
