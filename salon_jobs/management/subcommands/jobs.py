"""``salon_jobs list`` and ``show``, and the verbs for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.units import duration, with_noun
from salon_jobs.dashboard.labels import followed
from salon_jobs.jobs import registry
from salon_jobs.jobs.ordered import place_in_order
from salon_jobs.jobs.search import JobCriteria, NextAttempt, find_jobs, progress_of, retries_ahead
from salon_jobs.jobs.stages import stages_of
from salon_jobs.jobs.waiting import due_in, waiting_reasons
from salon_jobs.management.arguments import add_options, row_or_uuid
from salon_jobs.management.output import Console, colour_of, instant, when
from salon_jobs.management.subcommands import Subcommand, VerbSubcommand
from salon_jobs.models import FollowUp, Job, JobError, JobStep
from salon_jobs.schedules.scheduler import tick_of
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
        """Write the jobs; without queues if all are the default one, and without stores if there are none.

        On a narrow screen these are below each row, so that the names of tasks have room.
        """
        given = console.given("task", "queue", "error_class", "since", "until", store_id="store", job_key="key")
        criteria = JobCriteria(states=tuple(console["state"] or ()), **given)
        found = list(find_jobs(criteria, using=console.using).defer("payload", "trace", "log")[: console["limit"] + 1])
        jobs: list[Any] = found[: console["limit"]]
        now = datetime.now(UTC)
        waiting = waiting_reasons(jobs, using=console.using, now=now, store_name=_name)
        newest = JobError.objects.using(console.using).filter(job_id__in=[job.pk for job in jobs])
        newest = newest.order_by("job_id", "-pk").distinct("job_id")
        errors = {error.job_id: error for error in newest.only("job_id", "error_class", "message")}
        columns: dict[str, list[object]] = {
            "id": [job.pk for job in jobs],
            "task": [job.task for job in jobs],
            "state": [colour_of(job.timeliness) for job in jobs],
            "when": [_when(job, now) for job in jobs],
            "attempts": [f"{job.attempts}/{job.max_attempts}" for job in jobs],
        }
        places: dict[str, list[object]] = {}
        if any(job.queue != _DEFAULT_QUEUE for job in jobs):
            places["queue"] = [job.queue for job in jobs]
        if not console["json"] and (stores := {job.store_id for job in jobs if job.store_id}):
            names = store_names(stores)
            places["store"] = [names.get(job.store_id) for job in jobs]
        progress = progress_of(jobs, using=console.using)
        details = [progress.get(job.pk) or _why(job, waiting, errors.get(job.pk), now) for job in jobs]
        if console.is_narrow and places:
            parts = zip(*places.values(), details, strict=True)
            details = [
                " · ".join(str(part) for part in each if part not in ("", None, _DEFAULT_QUEUE)) for each in parts
            ]
        else:
            columns |= places
        described = [
            {name: getattr(job, name) for name in _COLUMNS}
            | {"error": errors[job.pk].message if job.pk in errors else None, "waiting": waiting.get(job.pk)}
            | {"progress": progress.get(job.pk)}
            for job in jobs
        ]
        table = [list(columns), *zip(*columns.values(), strict=True)]
        console.listing(described, table, "no job matches", details=details, detail="why")
        console.note_more(len(jobs), len(found))


def _when(job: Any, now: datetime) -> str:
    """Return the age that matters most in the job's state."""
    if job.state == JobState.RUNNING and job.started_at is not None:
        return f"for {duration((now - job.started_at).total_seconds())}"
    if job.state == JobState.QUEUED and not job.is_held:
        return when(job.run_at, now)
    return when(job.finished_at or job.created_at, now)


def _why(job: Any, waiting: Mapping[int, str], last: JobError | None, now: datetime) -> str:
    """Return why the job waits or failed, beyond what the columns show."""
    waits = waiting.get(job.pk, "")
    parts = [f"waiting: {waits}"] if waits and waits != due_in(job, now) else []
    if job.state == JobState.CANCELLED and job.reason:
        parts.append(job.reason)
    elif (job.error_class or last is not None) and job.state != JobState.SUCCEEDED:
        error_class, message = (job.error_class, "") if last is None else (last.error_class, last.message)
        parts.append(": ".join(part for part in (error_class.rpartition(".")[2], message) if part))
    return "; ".join(parts)


class ShowJob(Subcommand):
    """Subcommand that shows everything known about one job."""

    name = "show"
    help = "Show a job with its payload, the error of every attempt, what enqueued it and its upcoming retries."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=row_or_uuid, help="the number or public ID of a job")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Write the job. Raises CommandError when it does not exist."""
        using, now = console.using, datetime.now(UTC)
        column = "public_id" if isinstance(console["id"], UUID) else "pk"
        job: Any = Job.objects.using(using).filter(**{column: console["id"]}).first()
        if job is None:
            raise CommandError(
                f"there is no job {console['id']}; jobs that succeed are deleted unless RETAIN_SUCCEEDED keeps them"
            )
        tick: Any = tick_of(job, using=using)
        rows = JobError.objects.using(using).filter(job_id=job.pk).order_by("pk")
        errors = list(rows.values("attempt", "error_class", "code", "message", "traceback", "log", "occurred_at"))
        steps = list(JobStep.objects.using(using).filter(job_id=job.pk).order_by("committed_at", "pk"))
        then = FollowUp.objects.using(using).filter(pk=job.follow_up_id or 0).values("task", "remaining").first()
        of_flow, place = stages_of(job, using=using), place_in_order(job, using=using)
        payload = registry.visible(job.task, job.payload)
        ahead = retries_ahead(job, now)
        waits = waiting_reasons([job], using=using, now=now, store_name=_name).get(job.pk)
        progress = progress_of([job], using=using).get(job.pk)
        fields = {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}
        more = {
            "payload": payload,
            "cron_entry": tick and tick.entry,
            "follow_up": then,
            "flow": of_flow and of_flow.as_json(),
            "order": place and place._asdict(),
            "waiting": waits,
            "progress": progress,
        }
        shown = [("its flow", "\n".join(of_flow.lines()))] if of_flow else []
        done = [f"{step} · attempt {step.attempt} · {instant(step.committed_at)}" for step in steps[-_STEPS:]]
        shown += [("steps, the last ones", "\n".join(done))] if done else []
        text_before = ""
        for error in reversed(errors):
            code = f" ({error['code']})" if error["code"] else ""
            head = f"attempt {error['attempt']} failed at {instant(error['occurred_at'])}{code}"
            text = error["traceback"] or ": ".join((error["error_class"].rpartition(".")[2], error["message"]))
            shown.append((head, "the same error as above" if text == text_before else text))
            text_before = text
            shown += [("it logged", error["log"])] if error["log"] else []
        waited = None if job.claimed_at is None or job.started_at is None else job.started_at - job.claimed_at
        is_running = job.state == JobState.RUNNING
        console.page(
            {
                **fields,
                **more,
                "steps": [{name: getattr(step, name) for name in _STEP} for step in steps],
                "retries_ahead": list(map(asdict, ahead)),
                "errors": errors,
            },
            f"job {job.pk} {job.task}",
            job.timeliness,
            notes=[
                ("waiting", waits or "", "yellow"),
                ("progress", progress or "", "cyan"),
                ("reason", job.reason if job.state == JobState.CANCELLED else "", "yellow"),
                # Only its name: the error itself follows below.
                ("error", errors[-1]["error_class"].rpartition(".")[2] if errors else "", "red"),
            ],
            facts={
                "queue": job.queue,
                "store": job.store_id and _named(job.store_id),
                "attempts": f"{job.attempts} of {job.max_attempts}",
                "priority": job.priority or None,
                "enqueued": job.created_at,
                "due": job.run_at if job.state == JobState.QUEUED and not job.is_held else None,
                "claimed" if is_running else "started": job.started_at,
                "waited in the worker": None if waited is None or is_running else duration(waited.total_seconds()),
                "ended": job.finished_at,
                "cancellation requested": job.cancel_requested_at,
                "expires": job.expires_at,
                "key": job.job_key,
                "concurrency key": job.concurrency_key,
                "cron entry": tick and tick.entry,
                "fan-out": job.fan_out_id,
                "enqueued by": job.follows and followed(job.follows),
                "then": then and f"{then['task']}, after {with_noun(then['remaining'], 'more job')}",
                "flow": of_flow and f"{of_flow.name} #{of_flow.flow_id}",
                "order": place and "; ".join(place.lines()),
                "rescues": job.rescues or None,
                "next attempts": _retries(ahead, now) if job.attempts else None,
            },
            content={"payload": payload or "{}"},
            below=shown + ([("it logged", job.log)] if job.log else []),
        )


def _name(store: StoreId) -> str:
    return store_names({store})[store]


def _named(store: StoreId) -> str:
    name = _name(store)
    return name if name == str(store) else f"{name} ({store})"


_NEXT: Final = 3
_STEPS: Final = 50
_STEP: Final = ("name", "attempt", "position", "ended", "started_at", "committed_at")


def _retries(ahead: Sequence[NextAttempt], now: datetime) -> str:
    """Return when the next attempts become due if each fails at once."""
    times: list[str] = []
    for retry in ahead[:_NEXT]:
        earliest, latest = when(retry.earliest, now), when(max(retry.earliest, retry.latest), now)
        times.append(earliest if earliest == latest else f"{earliest} to {latest.removeprefix('in ')}")
    return ", ".join(times) + (", …" if len(ahead) > _NEXT else "")


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
            known = jobs.filter(Q(pk__in={*ids} - public) | Q(public_id__in=public)).count()
        console.change(self.verb, ids, known=known, **{name: console[name] for name in self.verb.takes})


JOBS: Final = (ListJobs(), ShowJob(), *(ChangeJobs(verb) for verb in verbs_of(Job).values() if verb.help))
