"""``salon_jobs list``, ``show``, ``cancel`` and ``retry``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.core.redaction import redacted
from salon_jobs.core.terminal import Screen
from salon_jobs.core.units import duration, with_noun
from salon_jobs.dashboard.labels import followed, store_names
from salon_jobs.jobs.control import cancel_jobs, retry_jobs
from salon_jobs.jobs.search import JobCriteria, find_jobs, retries_ahead
from salon_jobs.jobs.waiting import due_in, waiting_reasons
from salon_jobs.management.arguments import add_options, instant_ahead
from salon_jobs.management.output import (
    change_rows,
    colour_of,
    first_only,
    instant,
    printable,
    printable_lines,
    when,
    write_page,
    write_table,
)
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import FollowUp, Job, JobError
from salon_jobs.schedule.scheduler import tick_of

_DEFAULT_QUEUE: Final = "default"
# Columns of a job in JSON.
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
    "max_attempts",
    "created_at",
    "started_at",
)


class ListJobs(Subcommand):
    """Subcommand that lists the newest matching jobs."""

    name = "list"
    help = "List jobs, newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state", action="append", choices=[state.value for state in JobState], help="in this state; repeatable"
        )
        parser.add_argument("--key", metavar="KEY", help="with this job key")
        parser.add_argument(
            "--error-class", metavar="CLASS", help="failed with an error of this class, by its full name"
        )
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
        found = list(jobs.defer("payload", "trace")[: options["limit"] + 1])
        listed = found[: options["limit"]]
        now = datetime.now(UTC)
        waiting = waiting_reasons(listed, using=conf.reader_database, now=now, store_name=_name)
        errors = _last_errors(listed)
        if options["json"]:
            rows = [
                {name: getattr(job, name) for name in _COLUMNS}
                | {"error": errors.get(job.pk, (None, None))[1], "waiting": waiting.get(job.pk)}
                for job in listed
            ]
            out.write(json.dumps(rows, indent=2, default=str))
        elif listed:
            self._write(listed, [_why(job, waiting, errors, now) for job in listed], Screen.of(out, options), out)
        else:
            err.write("no job matches")
        if len(found) > len(listed):
            err.write(first_only(len(listed)))

    def _write(self, jobs: Sequence[Job], details: Sequence[str], screen: Screen, out: OutputWrapper) -> None:
        """Write the table; without queues if all are the default one, and without stores if there are none.

        On a narrow screen these are below each row, so that the names of tasks have room.
        """
        rows: Sequence[Any] = jobs  # only mypy knows the types of Django's fields
        now = datetime.now(UTC)
        columns: dict[str, list[object]] = {
            "id": [job.pk for job in rows],
            "task": [job.task for job in rows],
            "state": [colour_of(job.timeliness) for job in rows],
            "when": [_when(job, now) for job in rows],
            "attempts": [f"{job.attempts}/{job.max_attempts}" for job in rows],
        }
        places: dict[str, list[object]] = {}
        if any(job.queue != _DEFAULT_QUEUE for job in rows):
            places["queue"] = [job.queue for job in rows]
        if any(job.store_id for job in rows):
            names = store_names({job.store_id for job in rows if job.store_id})
            places["store"] = [names.get(job.store_id) for job in rows]
        if screen.is_narrow and places:
            texts = zip(*places.values(), details, strict=True)
            details = [
                " · ".join(str(text) for text in each if text not in ("", None, _DEFAULT_QUEUE)) for each in texts
            ]
        else:
            columns |= places
        write_table([list(columns), *zip(*columns.values(), strict=True)], details, screen, out, detail="why")


def _when(job: Any, now: datetime) -> str:
    """Return the age that matters most in the job's state."""
    if job.state == JobState.RUNNING and job.started_at is not None:
        return f"for {duration((now - job.started_at).total_seconds())}"
    if job.state == JobState.QUEUED:
        return when(job.run_at, now)
    return when(job.finished_at or job.created_at, now)


def _why(job: Any, waiting: Mapping[int, str], errors: Mapping[int, tuple[str, str]], now: datetime) -> str:
    """Return why the job waits or failed, beyond what the columns show."""
    waits = waiting.get(job.pk, "")
    parts = [f"waiting: {waits}"] if waits and waits != due_in(job, now) else []
    if job.state == JobState.CANCELLED and job.reason:
        parts.append(job.reason)
    elif (job.error_class or job.pk in errors) and job.state != JobState.SUCCEEDED:
        error_class, message = errors.get(job.pk, (job.error_class, ""))
        name = error_class.rpartition(".")[2]
        parts.append(f"{name}: {message}" if message else name)
    return "; ".join(parts)


def _last_errors(jobs: Sequence[Job]) -> dict[int, tuple[str, str]]:
    """Return the class and message of each job's last error."""
    rows = JobError.objects.using(conf.reader_database).filter(job_id__in=[job.pk for job in jobs])
    newest = rows.order_by("job_id", "-pk").distinct("job_id")
    return {job_id: (name, message) for job_id, name, message in newest.values_list("job_id", "error_class", "message")}


class ShowJob(Subcommand):
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
        follow_up_id: Any = job.follow_up_id
        follow_up = FollowUp.objects.using(using).filter(pk=follow_up_id).values("task", "remaining")
        shown: dict[str, Any] = {
            **{field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields},
            "payload": redacted(job.payload, conf.redact),
            "cron_entry": tick.entry if tick else None,
            "follow_up": follow_up.first() if follow_up_id else None,
            "retries_ahead": [asdict(retry) for retry in retries_ahead(job, datetime.now(UTC))],
        }
        waits = waiting_reasons([job], using=using, now=datetime.now(UTC), store_name=_name).get(job.pk)
        if options["json"]:
            out.write(json.dumps({**shown, "waiting": waits, "errors": errors}, indent=2, default=str))
            return
        screen = Screen.of(out, options)
        store = shown["store_id"]
        write_page(
            f"job {job.pk} {job.task}",
            job.timeliness,
            notes=[
                ("waiting", waits or "", "yellow"),
                ("reason", job.reason if job.state == JobState.CANCELLED else "", "yellow"),
                # Only its name: the error itself follows below.
                ("error", errors[-1]["error_class"].rpartition(".")[2] if errors else "", "red"),
            ],
            facts={
                "queue": job.queue,
                "store": None if store is None else _named(store, store_names({store})),
                "attempts": f"{job.attempts} of {job.max_attempts}",
                "priority": job.priority or None,
                "enqueued": job.created_at,
                "due": job.run_at if job.state == JobState.QUEUED else None,
                "claimed" if job.state == JobState.RUNNING else "started": job.started_at,
                "waited in the worker": _waited(job),
                "ended": job.finished_at,
                "cancellation requested": job.cancel_requested_at,
                "expires": job.expires_at,
                "key": job.job_key,
                "concurrency key": job.concurrency_key,
                "cron entry": shown["cron_entry"],
                "fan-out": job.fan_out_id,
                "enqueued by": followed(job.follows) if job.follows else None,
                "then": _then(shown["follow_up"]),
                "rescues": job.rescues or None,
                "next attempts": _retries(job) if job.attempts else None,
            },
            content={"payload": json.dumps(shown["payload"], indent=2, default=str, ensure_ascii=False)},
            screen=screen,
            out=out,
        )
        shown_before = ""
        for error in reversed(errors):
            code = f" ({error['code']})" if error["code"] else ""
            head = f"attempt {error['attempt']} failed at {instant(error['occurred_at'])}{code}"
            out.write(f"\n{screen.paint(printable(head), 'bold')}")
            text = error["traceback"] or ": ".join((error["error_class"].rpartition(".")[2], error["message"]))
            out.write("the same error as above" if text == shown_before else printable_lines(text))
            shown_before = text


def _waited(job: Job) -> str:
    """Return how long the last run that ended had waited for a thread of its worker."""
    if job.state == JobState.RUNNING or job.claimed_at is None or job.started_at is None:
        return ""
    return duration(max(0.0, (job.started_at - job.claimed_at).total_seconds()))


def _then(follow_up: Mapping[str, Any] | None) -> str:
    """Return which job follows once this one and its siblings have ended."""
    return f"{follow_up['task']}, after {with_noun(follow_up['remaining'], 'more job')}" if follow_up else ""


def _name(store: UUID) -> str:
    return store_names({store})[store]


def _named(store: UUID, names: Mapping[UUID, str]) -> str:
    name = names[store]
    return name if name == str(store) else f"{name} ({store})"


_NEXT: Final = 3


def _retries(job: Job) -> str:
    """Return when the next attempts become due if each fails at once."""
    now = datetime.now(UTC)
    ahead = retries_ahead(job, now)
    times: list[str] = []
    for retry in ahead[:_NEXT]:
        earliest, latest = when(retry.earliest, now), when(max(retry.earliest, retry.latest), now)
        times.append(earliest if earliest == latest else f"{earliest} to {latest.removeprefix('in ')}")
    return ", ".join(times) + (", …" if len(ahead) > _NEXT else "")


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
            raise CommandError("name the jobs by IDs, or by --task, --store and --queue")
        jobs = Job.objects.using(conf.reader_database).filter(state__in=self.states, **criteria).order_by("pk")
        ids: list[int] = list(dict.fromkeys(options["id"]) or jobs.values_list("pk", flat=True))
        known = jobs.model.objects.using(conf.reader_database).filter(pk__in=ids).count() if options["id"] else len(ids)
        verb = partial(self.verb, using=conf.reader_database, **self.arguments(options))
        change_rows(
            ids, verb, options, out, err, action=self.name.capitalize(), noun="job", done=self.done, known=known
        )

    def arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return further arguments of the verb."""
        return {}


class CancelJobs(ChangeJobs):
    """Subcommand that cancels jobs by ID, or all queued and running ones of a task, a store or a queue."""

    name = "cancel"
    help = "Cancel jobs: queued and failed ones at once; the worker of a running one is asked to end it."
    states = (JobState.QUEUED, JobState.RUNNING)
    done = "cancelled or asked to end"
    verb = staticmethod(cancel_jobs)


class RetryJobs(ChangeJobs):
    """Subcommand that retries failed and cancelled jobs by ID, or all failed ones of a task, a store or a queue."""

    name = "retry"
    help = "Queue failed and cancelled jobs again, due now or later; jobs without attempts left get one more."
    states = (JobState.FAILED,)
    done = "queued again"
    verb = staticmethod(retry_jobs)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--at", type=instant_ahead, metavar="TIME", help="when they are due: from now (12h) or an ISO 8601 instant"
        )

    def arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"at": options["at"]}
