"""``salon_jobs list``, ``show``, ``cancel`` and ``retry``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.core.redaction import redacted
from salon_jobs.jobs.control import BATCH, cancel_jobs, retry_jobs
from salon_jobs.jobs.search import JobCriteria, find_jobs, retries_ahead
from salon_jobs.management.arguments import instant, instant_ahead, positive
from salon_jobs.management.output import ask, in_batches, printable_lines, shortened, table, tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.models import Job, JobError
from salon_jobs.schedule.queries import tick_of

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
    help = "List jobs, the newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--state", action="append", choices=[state.value for state in JobState], help="in this state; repeatable"
        )
        parser.add_argument("--task", metavar="NAME", help="of this task")
        parser.add_argument("--queue", metavar="NAME", help="of this queue")
        parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
        parser.add_argument("--key", metavar="KEY", help="with this job key")
        parser.add_argument("--error-class", metavar="CLASS", help="failed by an error of this class, in full")
        parser.add_argument("--since", type=instant, metavar="TIME", help="enqueued since: an age or an instant")
        parser.add_argument("--until", type=instant, metavar="TIME", help="enqueued before")
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="so many at most (default 50)")
        parser.add_argument("--json", action="store_true", help="write a list of objects")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        criteria = JobCriteria(
            states=tuple(options["state"] or ()),
            task=options["task"],
            queue=options["queue"],
            store_id=options["store"],
            job_key=options["key"],
            error_class=options["error_class"],
            since=options["since"],
            until=options["until"],
        )
        rows = list(find_jobs(criteria, using=conf.reader_database).values(*_COLUMNS)[: options["limit"]])
        if options["json"]:
            out.write(json.dumps(rows, indent=2, default=str))
        elif rows:
            out.write(table([_COLUMNS, *([*{**row, "reason": shortened(row["reason"])}.values()] for row in rows)]))
        else:
            err.write("no job matches")


class Show(Subcommand):
    """Subcommand that shows everything known about one job."""

    name = "show"
    help = "Show a job with its payload, the error of every attempt, what enqueued it and the retries ahead."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", type=int, help="the id of a job")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write the job. Raises CommandError when it does not exist."""
        job = Job.objects.using(conf.reader_database).filter(pk=options["id"]).first()
        if job is None:
            raise CommandError(
                f"there is no job {options['id']}; jobs that succeed are deleted unless RETAIN_SUCCEEDED keeps them"
            )
        shown = _described(job)
        if options["json"]:
            out.write(json.dumps(shown, indent=2, default=str))
            return
        errors = shown.pop("errors")
        for name, value in shown.items():
            is_json = isinstance(value, dict | list)
            text = json.dumps(value, indent=2, default=str, ensure_ascii=False) if is_json else str(value)
            out.write(printable_lines(f"{name}: {text}"))
        for error in errors:
            code = f" ({error['code']})" if error["code"] else ""
            head = f"\nattempt {error['attempt']} at {error['occurred_at']}: {error['error_class']}{code}"
            out.write(printable_lines(f"{head}\n{error['traceback'] or error['message']}"))


def _described(job: Job) -> dict[str, Any]:
    rows = JobError.objects.using(conf.reader_database).filter(job_id=job.pk).order_by("pk")
    errors = rows.values("attempt", "error_class", "code", "message", "traceback", "occurred_at")
    tick: Any = tick_of(job, using=conf.reader_database)
    columns = {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}
    return {
        **columns,
        "payload": redacted(job.payload, conf.redact),
        "cron_entry": tick.entry if tick else None,
        "retries_ahead": [asdict(retry) for retry in retries_ahead(job, datetime.now(UTC))],
        "errors": list(errors),
    }


class OnJobs(Subcommand):
    """Subcommand that changes jobs by id, or all those of a task, a store or a queue in some states."""

    states: ClassVar[Sequence[JobState]]
    done: ClassVar[str]
    not_done: ClassVar[str]
    operate: ClassVar[Callable[..., list[ActionResult[int]]]]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=int, help="ids of jobs")
        parser.add_argument("--task", metavar="NAME", help=f"all {' and '.join(self.states)} jobs of this task")
        parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
        parser.add_argument("--queue", metavar="NAME", help="of this queue")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each job")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        ids = self._chosen(options)
        if ids and not options["yes"]:
            ask(f"{self.name.capitalize()} {len(ids):,} jobs?", err, otherwise=self.not_done, remedy="add --yes")
        operate = partial(self.operate, using=conf.reader_database, **self.values(options))
        results = in_batches(ids, operate, batch=BATCH, err=err)
        tell(results, self.done, lambda result: result.id, as_json=options["json"], out=out)

    def values(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return further arguments for ``operate``."""
        return {}

    def _chosen(self, options: dict[str, Any]) -> list[int]:
        named = {"task": options["task"], "store_id": options["store"], "queue": options["queue"]}
        wanted = {field: value for field, value in named.items() if value is not None}
        if bool(options["id"]) == bool(wanted):
            raise CommandError("name the jobs by ids, or by --task, --store and --queue")
        if options["id"]:
            return list(dict.fromkeys(options["id"]))
        live = Job.objects.using(conf.reader_database).filter(state__in=self.states, **wanted)
        return list(live.order_by("pk").values_list("pk", flat=True))


class Cancel(OnJobs):
    """Subcommand that cancels jobs by id, or all queued and running ones of a task, a store or a queue."""

    name = "cancel"
    help = "Cancel jobs: queued and failed ones at once; the process of a running one is asked to end it."
    states = (JobState.QUEUED, JobState.RUNNING)
    done = "cancelled or asked to end"
    not_done = "nothing was cancelled"
    operate = staticmethod(cancel_jobs)


class Retry(OnJobs):
    """Subcommand that retries failed and cancelled jobs by id, or all failed ones of a task, a store or a queue."""

    name = "retry"
    help = "Queue failed and cancelled jobs again, due now or later; those whose attempts are spent get one more."
    states = (JobState.FAILED,)
    done = "queued again"
    not_done = "nothing was queued"
    operate = staticmethod(retry_jobs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--at", type=instant_ahead, metavar="TIME", help="due then: in 12h, or at an instant in ISO 8601; else now"
        )

    def values(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the time at which they become due."""
        return {"at": options["at"]}
