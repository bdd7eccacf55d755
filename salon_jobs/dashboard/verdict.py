"""The verdict: the problems that need somebody now, for the dashboard, the terminal and ``/readyz``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext, ngettext

from salon_jobs.access.declared_objects import literal
from salon_jobs.conf import is_eager
from salon_jobs.conf import settings as conf
from salon_jobs.core.text import visible
from salon_jobs.core.units import counted, error_name, estimated
from salon_jobs.dashboard import relays
from salon_jobs.dashboard.facts import Facts, OpenTransaction, PreparedTransaction
from salon_jobs.dashboard.processes import LATE_TICK
from salon_jobs.jobs.search import COUNTED as COUNTED_FAILURES
from salon_jobs.jobs.search import FailureKind
from salon_jobs.jobs.waiting import Depth, serves
from salon_jobs.tenancy.names import store_names

# How many tasks, entries or tables one problem names at most.
_NAMED: Final = 3
_EMPTY: Final = Depth(0, 0, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that needs somebody: what is wrong and since when, and the command or step that mends it.

    ``kind`` is for programs, and does not change; the texts are in the active language. ``public`` is the text without
    names of stores and messages of errors, for whoever may ask a process for its readiness; ``public_remedy`` is that
    remedy, if it differs. The dashboard shows more: a ``section`` of its page, the list of a ``model`` with
    ``filters``, or the page of the row ``pk``. ``which`` tells problems of a kind with a section apart.
    """

    kind: str
    text: str
    remedy: str
    public: str = ""
    public_remedy: str = ""
    since: datetime | None = None
    section: str = ""
    model: str = ""
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    pk: int | None = None
    which: str = ""

    @property
    def key(self) -> str:
        """The beginning of the ID of its link, which stays the same as long as the problem lasts."""
        return f"problem-{self.kind}-"

    @property
    def sentence(self) -> str:
        """The problem, its beginning and the remedy, on one line."""
        return visible(f"{self.told}; {self.remedy}")

    @property
    def public_sentence(self) -> str:
        """The sentence without names of stores and messages of errors."""
        return replace(self, text=self.public or self.text, remedy=self.public_remedy or self.remedy).sentence

    def as_json(self) -> dict[str, Any]:
        """Return it as the commands write it, without what leads to a page; ``since`` is an instant or None."""
        shown = {name: getattr(self, name) for name in ("kind", "text", "since", "remedy")}
        return {**shown, "public": self.public or self.text}

    @property
    def told(self) -> str:
        """The problem and its beginning."""
        if self.since is None:
            return self.text
        since = f"{timezone.localtime(self.since):%Y-%m-%d %H:%M %Z}"
        return gettext("%(what)s (since %(time)s)") % {"what": self.text, "time": since}


def nothing_to_do() -> str:
    """Return what is said if there is no problem."""
    return gettext("No problems: workers run, and nothing waits for an operator.")


def problems(facts: Facts) -> tuple[Problem, ...]:
    """Find the problems, the worst first. Paused rows need no attention."""
    parts = (_workers, _queues, _schedulers, _deaths, _tasks, _transactions, _outbox, _operators_work, _migrations)
    return tuple(problem for part in parts for problem in part(facts))


def _workers(facts: Facts) -> Iterator[Problem]:
    if is_eager():
        yield Problem(
            kind="eager",
            text=gettext("jobs run in the process that enqueues them (EAGER)"),
            remedy=gettext("remove SALON_JOBS['EAGER'] where workers run"),
            section="processes",
        )
    elif not facts.alive("worker"):
        if pending := facts.pending_migrations:
            text = ngettext(
                "workers wait for %(count)s pending migration: %(names)s",
                "workers wait for %(count)s pending migrations: %(names)s",
                len(pending),
            ) % {"count": len(pending), "names": _some(pending)}
            yield Problem(
                kind="migrations-pending",
                text=text,
                remedy=gettext("run: python manage.py migrate"),
                section="processes",
            )
        else:
            yield Problem(
                kind="no-worker",
                text=gettext("no worker is running"),
                remedy=gettext("start one: python manage.py runworker"),
                since=facts.none_since("worker"),
                section="processes",
            )
    if silent := [each for each in facts.processes if each.silent]:
        text = ngettext("%(count)s process is silent", "%(count)s processes are silent", len(silent))
        remedy = ngettext(
            "others take over its jobs; look at its host: %(names)s",
            "others take over their jobs; look at their hosts: %(names)s",
            len(silent),
        )
        yield Problem(
            kind="silent",
            text=text % {"count": len(silent)},
            remedy=remedy % {"names": _some([f"{each.kind} {each.name}" for each in silent])},
            since=_ago(facts, max(each.beat_s_ago for each in silent)),
            section="processes",
        )


def _queues(facts: Facts) -> Iterator[Problem]:
    workers = facts.alive("worker")
    depths = {each.name: each.depth for each in facts.waiting.queues}
    names = store_names(set(facts.stores_of_late.values())) if workers else {}
    for queue in sorted({*depths, *facts.late}) if workers else ():
        depth = depths.get(queue, _EMPTY)
        due = estimated(depth.due, facts.waiting.exact)
        listed = {"queue": queue, "state__exact": "queued"}
        if depth.due and not any(serves(each.queues, queue) for each in workers):
            text = ngettext(
                "no worker serves queue %(queue)s, which has %(jobs)s due job",
                "no worker serves queue %(queue)s, which has %(jobs)s due jobs",
                depth.due,
            ) % {"queue": queue, "jobs": due}
            yield Problem(
                kind="queue-unserved",
                text=text,
                remedy=gettext("start a worker for it: python manage.py runworker --queue %(queue)s")
                % {"queue": quote(queue)},
                since=_ago(facts, depth.oldest_due_s),
                model="job",
                filters=listed,
            )
        elif queue in facts.late:
            text = gettext("queue %(queue)s is late") % {"queue": queue}
            if depth.due:  # else it is behind so many others that it was not counted
                said = ngettext("%(late)s: %(jobs)s due job", "%(late)s: %(jobs)s due jobs", depth.due)
                text = said % {"late": text, "jobs": due}
            public = text
            if (store := facts.stores_of_late.get(queue)) is not None:
                most = gettext("%(late)s, most in store %(store)s")
                said = gettext("%(late)s, in store %(store)s") if depth.due == 1 else most
                text = said % {"late": text, "store": names[store]}
            yield Problem(
                kind="queue-late",
                text=text,
                public=public,
                remedy=gettext("see what keeps them: python manage.py salon_jobs list --queue %(queue)s --state queued")
                % {"queue": quote(queue)},
                since=_ago(facts, facts.late[queue]),
                model="job",
                filters=listed,
            )
    if tasks := facts.front.unknown_tasks:
        text = ngettext(
            "%(jobs)s due job is of a task not declared here: %(names)s",
            "%(jobs)s due jobs are of tasks not declared here: %(names)s",
            facts.front.unknown_jobs,
        ) % {"jobs": f"{facts.front.unknown_jobs:,}", "names": _some(tasks)}
        yield Problem(
            kind="task-undeclared",
            text=text,
            remedy=gettext(
                "deploy the code that declares it, or cancel them: python manage.py salon_jobs cancel --task %(task)s"
            )
            % {"task": quote(tasks[0])},
            since=_ago(facts, facts.front.unknown_late_s),
            model="job",
            filters={**({"task": tasks[0]} if len(tasks) == 1 else {}), "state__exact": "queued"},
        )


def _deaths(facts: Facts) -> Iterator[Problem]:
    ends = facts.ends
    if not ends.deaths:
        return
    text = ngettext("%(count)s process died", "%(count)s processes died", ends.deaths) % {"count": f"{ends.deaths:,}"}
    remedy = gettext("see why in their logs, or in that of the system, which kills for memory: %(names)s")
    remedy %= {"names": _some(ends.names)}
    if jobs := _some(map(str, ends.job_ids)):
        if len(ends.job_ids) > 1:  # it may be any of them, or none
            said = gettext("%(died)s, %(most)s with each of the jobs %(jobs)s")
        elif ends.deaths == 1:
            said = gettext("%(died)s with job %(jobs)s")
        else:
            said = gettext("%(died)s, %(most)s with job %(jobs)s")
        jobs = f"{jobs}, {ends.task}" if ends.task else jobs
        text = said % {"died": text, "most": ends.of_job, "jobs": jobs}
    if ends.task is not None:
        remedy = (
            gettext("see why, and mend its task before it is retried: python manage.py salon_jobs show %(job)s")
            if ends.state == "failed"
            else gettext("see why, then cancel it or mend its task: python manage.py salon_jobs show %(job)s")
        )
        remedy %= {"job": ends.job_ids[0]}
    yield Problem(
        kind="processes-died",
        text=text,
        remedy=remedy,
        since=ends.first_at,
        section="processes" if ends.task is None else "",
        model="job",
        pk=ends.job_ids[0] if ends.task is not None else None,
    )


def _schedulers(facts: Facts) -> Iterator[Problem]:
    late = [each for each in facts.cron if each.is_late(facts.at)]
    schedules = facts.schedules
    missed = [each.next_at for each in late if each.next_at is not None]
    if not facts.alive("scheduler"):
        active = [each for each in facts.cron if each.next_at is not None and not each.paused]
        ended_at = facts.none_since("scheduler")
        restarts = ended_at is not None and facts.at - ended_at <= LATE_TICK and not (missed or schedules.late)
        if (active or schedules.exist) and not restarts:
            yield Problem(
                kind="no-scheduler",
                text=gettext("no scheduler is running, so no cron entry or schedule fires"),
                remedy=gettext("start one: python manage.py runscheduler"),
                since=ended_at or min(filter(None, (*missed, schedules.oldest)), default=None),
                section="cron",
            )
        return
    if late:
        text = ngettext("cron entry %(names)s is late", "cron entries are late: %(names)s", len(late))
        yield Problem(
            kind="cron-late",
            text=text % {"names": _some([each.name for each in late])},
            remedy=gettext("read the scheduler's log, which says why it does not fire"),
            since=min(missed),
            model="cronentrystate",
            filters={"q": late[0].name} if len(late) == 1 else {},
        )
    if schedules.late:
        text = ngettext("%(count)s schedule is late", "%(count)s schedules are late", schedules.late)
        yield Problem(
            kind="schedules-late",
            text=text % {"count": counted(schedules.late, relays.COUNTED)},
            remedy=gettext("read the scheduler's log, which says why it does not fire"),
            since=schedules.oldest,
            model="schedule",
        )


def _tasks(facts: Facts) -> Iterator[Problem]:
    for each in facts.failing_tasks:
        text = ngettext(
            "the run of %(task)s has failed, and its jobs are tried again",
            "all %(count)s runs of %(task)s have failed, and its jobs are tried again",
            each.runs,
        )
        yield Problem(
            kind="task-failing",
            text=text % {"count": f"{each.runs:,}", "task": each.task},
            remedy=gettext(
                "see the error: python manage.py salon_jobs list --task %(task)s; until it is mended:"
                " python manage.py salon_jobs pause --task %(task)s"
            )
            % {"task": quote(each.task)},
            since=each.since,
            model="job",
            filters={"task": each.task, "state__exact": "queued", "retrying": "1"},
        )


def _transactions(facts: Facts) -> Iterator[Problem]:
    for prepared in facts.prepared_transactions:
        names = {"gid": literal(prepared.gid), "user": prepared.user}
        text = gettext("transaction %(gid)s of %(user)s was prepared and has not ended") % names
        yield Problem(
            kind="transaction-prepared",
            text=_with_locks(text, prepared),
            public=gettext("a transaction was prepared and has not ended"),
            remedy=gettext("end it as %(user)s, if whoever prepared it does not: ROLLBACK PREPARED %(gid)s") % names,
            public_remedy=gettext("see whose it is: python manage.py salon_jobs status"),
            since=prepared.since,
            section="processes",
            which=prepared.number,
        )
    for each in facts.open_transactions:
        said = gettext("session %(session)s has had a transaction open")
        text, public = said % {"session": each.name}, said % {"session": each.pid}
        remedy = gettext("end it, as its user or a superuser: SELECT pg_terminate_backend(%(pid)s)")
        if not each.blocked and not each.tables:
            remedy = gettext("let it finish if it is a dump or a report; until then, no dead rows are removed")
        yield Problem(
            kind="transaction-open",
            text=_with_locks(text, each),
            public=public,
            remedy=remedy % {"pid": each.pid},
            since=each.since,
            section="processes",
            which=str(each.pid),
        )


def _with_locks(text: str, transaction: OpenTransaction | PreparedTransaction) -> str:
    """Say whom a transaction holds up, or what it could."""
    if count := transaction.blocked:
        said = ngettext(
            "%(what)s, and %(count)s session waits for it", "%(what)s, and %(count)s sessions wait for it", count
        )
        return said % {"what": text, "count": f"{count:,}"}
    if transaction.tables:
        return gettext("%(what)s, with locks on %(tables)s") % {"what": text, "tables": _some(transaction.tables)}
    return gettext("%(what)s, which holds up nobody") % {"what": text}


def _outbox(facts: Facts) -> Iterator[Problem]:
    if conf.outbox.producer is None:
        return
    relaying = facts.relaying
    in_use = [each for each in relaying.destinations if not each.paused]
    for each in in_use:
        if each.outage_since is not None:
            text = gettext("destination %(name)s is down: %(code)s")
            yield Problem(
                kind="destination-down",
                text=text % {"name": each.aggregate_type, "code": each.outage_code},
                remedy=gettext("mend the broker; its messages wait and are sent then"),
                since=each.outage_since,
                model="destinationstate",
                filters={"q": each.aggregate_type},
            )
    late_s = max((each.oldest_s or 0.0 for each in in_use), default=0.0)
    if relaying.unowned and late_s:
        text = ngettext(
            "no relay owns %(count)s partition, and messages wait",
            "no relay owns %(count)s partitions, and messages wait",
            len(relaying.unowned),
        ) % {"count": len(relaying.unowned)}
        remedy = gettext("start one: python manage.py relay_outbox")
        yield Problem(kind="no-relay", text=text, remedy=remedy, since=_ago(facts, late_s), section="relays")
    if relaying.gate.behind:
        text = ngettext(
            "%(count)s message is held back by an open transaction",
            "%(count)s messages are held back by an open transaction",
            relaying.gate.behind,
        ) % {"count": f"{relaying.gate.behind:,}"}
        since = [each.since for each in relaying.gate.holders if each.since]
        remedy = gettext("see whose it is: python manage.py salon_jobs messages gate")
        yield Problem(kind="gate-held", text=text, remedy=remedy, since=min(since, default=None), section="relays")


def _operators_work(facts: Facts) -> Iterator[Problem]:
    totals = facts.totals
    if totals.failed:
        yield _failed_jobs(totals.failed, facts.failures)
    if totals.parked:
        text = ngettext("%(count)s parked aggregate", "%(count)s parked aggregates", totals.parked)
        yield Problem(
            kind="aggregates-parked",
            text=text % {"count": counted(totals.parked, relays.COUNTED)},
            remedy=gettext("retry or skip their messages: python manage.py salon_jobs messages parked"),
            since=totals.parked_since,
            model="blockedaggregate",
            filters={"status__exact": "parked"},
        )
    if totals.rejected:
        text = ngettext("%(count)s rejected message", "%(count)s rejected messages", totals.rejected)
        yield Problem(
            kind="messages-rejected",
            text=text % {"count": counted(totals.rejected, relays.COUNTED)},
            remedy=gettext("retry or dismiss them: python manage.py salon_jobs inbox"),
            since=totals.rejected_since,
            model="inboxmessage",
            filters={"status__exact": "rejected"},
        )


def _migrations(facts: Facts) -> Iterator[Problem]:
    """Name migrations that nobody misses yet: the workers that run are of the release before, or need none of them."""
    if facts.alive("worker") and (pending := facts.pending_migrations):
        text = ngettext(
            "%(count)s migration is pending: %(names)s", "%(count)s migrations are pending: %(names)s", len(pending)
        ) % {"count": len(pending), "names": _some(pending)}
        remedy = gettext("run: python manage.py migrate; workers that start wait for it")
        yield Problem(kind="migrations-pending", text=text, remedy=remedy, section="processes")


def _failed_jobs(failed: int, kinds: list[FailureKind]) -> Problem:
    """Name the largest group of failed jobs, and how many others there are."""
    text = ngettext("%(count)s failed job", "%(count)s failed jobs", failed)
    text %= {"count": counted(failed, relays.COUNTED)}
    largest = max(kinds, key=lambda kind: kind.jobs, default=None)
    filters, since, public = {"state__exact": "failed"}, None, text
    if largest is not None:
        said = gettext("%(count)s × %(error)s in %(task)s")
        group = {"count": counted(largest.jobs, COUNTED_FAILURES + 1), "task": largest.task}
        exact = failed < relays.COUNTED and largest.jobs <= COUNTED_FAILURES
        others = failed - largest.jobs if exact else len(kinds) - 1
        error, message = error_name(largest.error_class), largest.message.split("\n")[0][:80]
        public, text = (f"{text}: {said % {**group, 'error': each}}" for each in (error, f"{error} {message}".rstrip()))
        since = largest.first_at
        if others > 0:
            more = ngettext(", and %(count)s other", ", and %(count)s others", others) % {"count": f"{others:,}"}
            more = more if exact else gettext(", and others")
            text, public = text + more, public + more
            since = None if since is None else min(each.first_at for each in kinds if each.first_at is not None)
        else:
            filters["fingerprint"] = str(largest.fingerprint)
    return Problem(
        kind="jobs-failed",
        text=text,
        public=public,
        remedy=gettext("retry or discard them: python manage.py salon_jobs list --state failed"),
        since=since,
        model="job",
        filters=filters,
    )


def _some(names: Any) -> str:
    """Return the first names, and whether there are more."""
    found = [*names]
    return f"{', '.join(found[:_NAMED])}{', …' if found[_NAMED:] else ''}"


def _ago(facts: Facts, seconds: float | None) -> datetime | None:
    return None if seconds is None else facts.at - timedelta(seconds=seconds)
