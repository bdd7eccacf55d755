"""``salon_jobs list`` and ``show``, and the verbs for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.units import duration
from salon_jobs.dashboard.jobs import JobPage, JobRow, job_page, job_rows, name_of, seconds_between
from salon_jobs.jobs.search import JobCriteria, find_jobs
from salon_jobs.management.arguments import add_options, row_or_uuid
from salon_jobs.management.output import Console, colour_of, instant, when
from salon_jobs.management.subcommands import Subcommand, VerbSubcommand
from salon_jobs.models import Job
from salon_jobs.tenancy.names import store_names
from salon_jobs.verbs import verbs_of

_DEFAULT_QUEUE: Final = "default"
# Columns of a job in JSON.
_COLUMNS: Final = (
    *("id", "task", "state", "reason", "store_id", "queue", "priority", "attempts", "run_at", "finished_at"),
    *("error_class", "max_attempts", "created_at", "started_at"),
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

    def run(self, console: Console) -> None:
        """Write the jobs; on a narrow screen with queue and store below each row, so that names of tasks have room."""
        given = console.given("task", "queue", "error_class", "since", "until", store_id="store", job_key="key")
        criteria = JobCriteria(states=tuple(console["state"] or ()), **given)
        found = list(find_jobs(criteria, using=console.using).defer("payload", "trace", "log")[: console["limit"] + 1])
        rows = job_rows(found[: console["limit"]], using=console.using)
        names = {} if console["json"] else store_names({row.job.store_id for row in rows if row.job.store_id})
        table: list[tuple[object, ...]] = [("id", "task", "state", "when", "attempts", "queue", "store", "why")]
        for row in rows:
            job = row.job
            state, attempts = colour_of(job.timeliness(row.now)), f"{job.attempts}/{job.max_attempts}"
            queue = None if job.queue == _DEFAULT_QUEUE else job.queue
            table.append((job.pk, job.task, state, _when(row), attempts, queue, names.get(job.store_id), _why(row)))
        described = [
            {name: getattr(row.job, name) for name in _COLUMNS}
            | {"error": row.last_error and row.last_error.message, "waiting": row.waiting}
            | {"progress": row.progress or None}
            for row in rows
        ]
        console.listing(described, table, "no job matches", below=("queue", "store"))
        console.note_more(len(rows), len(found))


def _when(row: JobRow) -> str:
    """Return the age that matters most in the job's state."""
    job = row.job
    if row.claimed_at is not None:
        return f"for {duration(seconds_between(row.claimed_at, row.now))}"
    if job.state == JobState.QUEUED and not job.is_held:
        return when(job.run_at, row.now)
    return when(job.finished_at or job.created_at, row.now)


def _why(row: JobRow) -> str:
    """Return why the job waits, beyond the columns, its progress, and why it failed or was cancelled."""
    waits = f"waiting: {row.waiting}" if row.waiting and not row.is_only_early else ""
    return "; ".join(filter(None, (waits, row.progress, row.trouble)))


class ShowJob(Subcommand):
    """Subcommand that shows everything known about one job."""

    name = "show"
    help = "Show a job with its payload, the error of every attempt, what enqueued it and its upcoming retries."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=row_or_uuid, help="the number or public ID of a job")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Write the job. Raises CommandError when it does not exist."""
        using = console.using
        column = "public_id" if isinstance(console["id"], UUID) else "pk"
        job: Any = Job.objects.using(using).filter(**{column: console["id"]}).first()
        if job is None:
            raise CommandError(
                f"there is no job {console['id']}; jobs that succeed are deleted unless RETAIN_SUCCEEDED keeps them"
            )
        page = job_page(job, using=using)
        payload, flow, order, tick, then = page.payload, page.flow, page.order, page.tick, page.follow_up
        known = {
            **{field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields},
            "payload": payload,
            "cron_entry": tick and tick.entry,
            "follow_up": then and {"task": then.task, "remaining": then.remaining},
            "flow": flow and flow.as_json(),
            "order": order and order._asdict(),
            "waiting": page.waiting,
            "progress": page.progress or None,
            "steps": [{name: getattr(step, name) for name in _STEP} for step in reversed(page.steps)],
            "retries_ahead": list(map(asdict, page.retries)),
            "errors": [{name: getattr(error, name) for name in _ERROR} for error in reversed(page.errors)],
        }
        console.page(
            known,
            f"job {job.pk} {job.task}",
            job.timeliness(page.now),
            notes=[
                ("waiting", "" if page.waiting is None else page.waiting or page.turn, "yellow"),
                ("progress", page.progress, "cyan"),
                ("outcome", page.outcome, "yellow"),
                # Only its name: the error itself follows below.
                ("error", page.errors[0].error_class.rpartition(".")[2] if page.errors else "", "red"),
            ],
            facts={
                "queue": job.queue,
                "store": job.store_id and _named(job.store_id),
                "attempts": page.attempts,
                "priority": job.priority or None,
                "enqueued": job.created_at,
                "due": job.run_at if job.state == JobState.QUEUED and not job.is_held else None,
                "claimed": page.claimed_at,
                "started": page.began_at,
                "ran for": None if page.ran_s is None else duration(page.ran_s),
                "waited in the worker": None if page.waited_s is None else duration(page.waited_s),
                "ended": job.finished_at,
                "cancellation requested": job.cancel_requested_at,
                "expires": job.expires_at,
                "key": job.job_key,
                "concurrency key": job.concurrency_key,
                "enqueued by": page.origin and page.origin.text,
                "then": page.then,
                "flow": flow and f"{flow.name} #{flow.flow_id}",
                "order": order and "; ".join(order.lines()),
                "next attempts": _retries(page) if job.attempts else None,
            },
            content={"payload": payload or "{}"},
            below=list(_texts(page)),
        )


def _texts(page: JobPage) -> Iterator[tuple[str, str]]:
    """Yield the texts below the facts: the flow, the last steps in their order, and the errors and logs of attempts."""
    if page.flow:
        yield "its flow", "\n".join(page.flow.lines())
    if steps := page.steps[:_STEPS]:
        done = [f"{step} · attempt {step.attempt} · {instant(step.committed_at)}" for step in reversed(steps)]
        yield "steps, the last ones", "\n".join(done)
    text_before = ""
    for error in page.errors:
        code = f" ({error.code})" if error.code else ""
        text = error.traceback or ": ".join((error.error_class.rpartition(".")[2], error.message))
        named = "process died" if error.is_death else f"attempt {error.attempt} failed"
        yield (
            f"{named} at {instant(error.occurred_at)}{code}",
            "the same error as above" if text == text_before else text,
        )
        text_before = text
        if error.log:
            yield "it logged", error.log
    if page.job.log:
        yield "it logged", page.job.log


def _named(store: StoreId) -> str:
    name = name_of(store)
    return name if name == str(store) else f"{name} ({store})"


_NEXT: Final = 3
_STEPS: Final = 50
_ERROR: Final = ("attempt", "error_class", "code", "message", "traceback", "log", "occurred_at")
_STEP: Final = ("name", "attempt", "position", "ended", "started_at", "committed_at")


def _retries(page: JobPage) -> str:
    """Return when the next attempts become due if each fails at once."""
    times: list[str] = []
    for retry in page.retries[:_NEXT]:
        earliest, latest = when(retry.earliest, page.now), when(max(retry.earliest, retry.latest), page.now)
        times.append(earliest if earliest == latest else f"{earliest} to {latest.removeprefix('in ')}")
    return ", ".join(times) + (", …" if len(page.retries) > _NEXT else "")


class ChangeJobs(VerbSubcommand):
    """Subcommand that changes jobs by ID, or all those of a task, a store or a queue in some states."""

    def add_arguments(self, parser: CommandParser) -> None:
        what = f"numbers or public IDs of jobs; or all {' and '.join(self.verb.matching)} jobs that match the options"
        parser.add_argument("id", nargs="*", type=row_or_uuid, help=what)
        takes = (f"--{name.replace('_', '-')}" for name in self.verb.takes)
        add_options(parser, *takes, "--task", "--store", "--queue", "--yes", "--json")

    def run(self, console: Console) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        criteria = console.given("task", "queue", store_id="store")
        if bool(console["id"]) == bool(criteria):
            raise CommandError("name the jobs by IDs, or by --task, --store and --queue")
        jobs = Job.objects.using(console.using)
        order = "pk" if self.verb.oldest_first else "-pk"
        matching = jobs.filter(state__in=self.verb.matching, **criteria).order_by(order)
        ids = list(dict.fromkeys(console["id"])) or list(matching.values_list("pk", flat=True))
        known = len(ids)
        if console["id"]:
            public = {each for each in ids if isinstance(each, UUID)}
            numbers = dict(jobs.filter(public_id__in=public).values_list("public_id", "pk"))
            ids = [each for each in ids if numbers.get(each) not in ids]  # a job named twice is one
            known = jobs.filter(Q(pk__in={*ids} - public) | Q(public_id__in=public.intersection(ids))).count()
        console.change(self.verb, ids, known=known, **{name: console[name] for name in self.verb.takes})


JOBS: Final = (ListJobs(), ShowJob(), *(ChangeJobs(verb) for verb in verbs_of(Job).values() if verb.help))
