"""Job options other than arguments, including timeouts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations, product
from typing import Annotated, Any, Final, Literal, TypedDict, cast, get_type_hints
from uuid import UUID

from salon_jobs.core.arguments import check_text
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import OptionInvalid, TaskInvalid, suggest
from salon_jobs.core.outcomes import DISCARDED, Cancelled, Errored, Retry
from salon_jobs.core.records import JobKeyMode, StoreId
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import EARLIEST, LATEST, RATE_UNITS, in_seconds
from salon_jobs.db.instants import from_project

KeyMode = Literal["replace", "preserve_run_at", "unsafe_dedupe"]
LONGEST_DAYS: Final = 36_500
LONGEST: Final = {"job_key": 512, "concurrency_key": 255}
# Marks an option that only a single enqueue may have, not a fan-out or an ``enqueue_many``.
SINGLE_JOB_ONLY: Final = "of one"


def check_instant(name: str, value: object) -> datetime:
    """Return an aware datetime, or with ``USE_TZ = False`` a naive one made aware. Raises OptionInvalid for others."""
    instant = from_project(value) if isinstance(value, datetime) else None
    if instant is None or instant.tzinfo is None:
        raise OptionInvalid(f"{name} must be an aware datetime, not {short_repr(value)}; give it a time zone")
    if not EARLIEST <= instant <= LATEST:
        raise OptionInvalid(f"{name} must lie between {EARLIEST} and {LATEST}, not at {short_repr(value)}")
    return instant


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Reject anything but a whole number in this range. Raises OptionInvalid naming the field."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionInvalid(f"{name} must be a whole number from {least} to {most}, not {short_repr(value)}")


def check_flag(name: str, value: object) -> bool:
    """Return True or False; refuse anything else. Raises OptionInvalid naming the field."""
    if not isinstance(value, bool):
        raise OptionInvalid(f"{name} must be True or False, not {short_repr(value)}")
    return value


def check_duration(name: str, value: object, most_days: int = LONGEST_DAYS) -> None:
    """Reject anything but a timedelta from zero to so many days. Raises OptionInvalid naming the field."""
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= timedelta(days=most_days):
        most_s = timedelta(days=most_days).total_seconds()
        is_seconds = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most_s
        remedy = f"; write timedelta(seconds={value})" if is_seconds else ""
        raise OptionInvalid(
            f"{name} must be a timedelta from zero to {most_days:,} days, not {short_repr(value)}{remedy}"
        )


def check_key_mode(name: str, value: object) -> None:
    """Reject anything but a mode of job keys. Raises OptionInvalid naming the field."""
    if value not in tuple(JobKeyMode):
        raise OptionInvalid(f"{name} must be one of {', '.join(JobKeyMode)}, not {short_repr(value)}")


def check_ordered(name: str, value: object) -> None:
    """Reject anything but a way to keep the jobs of a key in order. Raises OptionInvalid naming the field."""
    if not isinstance(value, bool) and value != "skip_failed":
        raise OptionInvalid(f"{name} must be True, False or 'skip_failed', not {short_repr(value)}")


def check_timeout(name: str, value: object) -> None:
    """Reject anything but a timedelta above zero. Raises OptionInvalid naming the field."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise OptionInvalid(f"{name} must be a timedelta above zero, not {short_repr(value)}")


def check_backoff(name: str, value: object) -> None:
    """Reject anything but a Backoff. Raises OptionInvalid naming the field."""
    if not isinstance(value, Backoff):
        raise OptionInvalid(f"{name} must be a salon_jobs.Backoff, not {short_repr(value)}")


def check_exceptions(name: str, value: object) -> None:
    """Reject anything but a tuple of exception classes. Raises OptionInvalid naming the field."""
    kinds = cast("tuple[object, ...]", value) if type(value) is tuple else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise OptionInvalid(f"{name} must be a tuple of exception classes, not {short_repr(value)}")  # pyright: ignore[reportUnknownArgumentType]


def check_rate(name: str, value: Any) -> float:
    """Return how many jobs may start per second. Raises OptionInvalid naming the field."""
    return parse_rate(value, name)


_Count = Annotated[int | None, partial(check_number, least=1, most=2**31 - 1)]
_Errors = Annotated[tuple[type[BaseException], ...] | None, check_exceptions]
_Rate = Annotated[float | str | None, check_rate]
_Timeout = Annotated[timedelta | None, check_timeout]


class SharedOptions(TypedDict, total=False):
    """Options that a task declares and ``using`` changes for one enqueue; None is the same as leaving one out.

    This class and the two after it are the table of all options: each has its type, its check and its documentation
    here. The classes that hold the values give the defaults.
    """

    queue: Annotated[str | None, partial(check_text, longest=100)]
    """Where its jobs wait; ``"default"``."""
    priority: Annotated[int | None, partial(check_number, least=-32768, most=32767)]
    """Smaller first."""
    max_attempts: Annotated[int | None, partial(check_number, least=1, most=32767)]
    """How often a job runs at most; by default the setting, 25."""
    job_key: Annotated[str | None, partial(check_text, longest=LONGEST["job_key"])]
    """At most one job with the same key waits. Of a task, a template over the arguments."""
    job_key_mode: Annotated[KeyMode | None, check_key_mode]
    """What an enqueue does if a job waits under the key; see docs/how-to/job-keys.md."""
    concurrency_key: Annotated[str | None, partial(check_text, longest=LONGEST["concurrency_key"])]
    """Jobs that share the key share the limit ``key_concurrency``. Of a task, a template over the arguments."""
    keep_result: Annotated[timedelta | None, check_duration]
    """How long the handler's result is kept after a success; zero: not at all, the default."""


class EnqueueOptions(SharedOptions, total=False):
    """Options of ``using`` and ``enqueue_job``; ``SINGLE_JOB_ONLY`` marks those that a call for many jobs refuses."""

    run_at: Annotated[datetime | None, check_instant]
    """When it is due."""
    run_in: Annotated[timedelta | None, check_duration]
    """How long from now it is due, by the database's clock; instead of ``run_at``."""
    expires_at: Annotated[datetime | None, check_instant]
    """When it is cancelled if it has not begun."""
    expires_in: Annotated[timedelta | None, check_duration]
    """How long from now it is cancelled if it has not begun, by the database's clock; instead of ``expires_at``."""
    max_wait: Annotated[timedelta | None, check_duration]
    """How long after it was first enqueued ``replace`` can postpone it; see docs/how-to/job-keys.md."""
    unique_for: Annotated[timedelta | None, check_duration, SINGLE_JOB_ONLY]
    """How long the same enqueue adds nothing after this one, even if its job has ended; see docs/how-to/job-keys.md."""


class TaskOptions(SharedOptions, total=False):
    """Options of ``task`` and ``store_task``."""

    backoff: Annotated[Backoff | None, check_backoff]
    """How long a failed job waits before its retry; None: the setting."""
    retry_on: _Errors
    """Errors that are retried; None: all."""
    fail_on: _Errors
    """Errors that fail the job at once; the others are retried."""
    discard_on: _Errors
    """Errors that discard the job; see docs/how-to/retries-snooze-discard.md."""
    timeout: _Timeout
    """Limit of a run; see docs/how-to/timeouts-and-cancellation.md."""
    wait_timeout: _Timeout
    """Limit of the wait before a run."""
    wait_overtime: _Timeout
    """How much of the wait does not count towards ``wait_timeout``."""
    waiting_shortens_timeout: Annotated[bool | None, check_flag]
    """Whether a run gets no more time than remains of ``wait_timeout``."""
    max_concurrency: _Count
    """How many of its jobs run at once, in all processes; see docs/how-to/pause-and-limit.md."""
    key_concurrency: _Count
    """How many jobs with the same ``concurrency_key`` run at once; None: 1, or any number with ``key_rate``."""
    ordered: Annotated[bool | Literal["skip_failed"] | None, check_ordered]
    """Whether jobs with the same ``concurrency_key`` run one by one in the order enqueued; see docs/how-to/order.md."""
    rate: _Rate
    """How many of its jobs start per second, or as text in a unit such as "100/m"."""
    key_rate: _Rate
    """How many jobs with the same ``concurrency_key`` start, as ``rate``."""
    burst: _Count
    """How many starts a quiet time saves up for these rates; None: those of a second."""
    at_most_once: Annotated[bool | None, check_flag]
    """Whether an interrupted run is never repeated; see docs/how-to/how-often-it-runs.md."""
    max_deaths: Annotated[int | None, partial(check_number, least=1, most=32767)]
    """At how many deaths of processes that ran it a job fails; by default the setting, 5."""


# The check of each option, and SINGLE_JOB_ONLY where it applies.
_TABLE: Final[dict[str, tuple[Any, ...]]] = {
    name: hint.__metadata__
    for kind in (EnqueueOptions, TaskOptions)
    for name, hint in get_type_hints(kind, include_extras=True).items()
}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, as their checks convert them. Raises OptionInvalid naming the field."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            replaced = _TABLE[name][0](name, value)
            given[name] = value if replaced is None else replaced
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options that ``using`` can change for one enqueue. Raises OptionInvalid if two contradict each other."""

    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    run_at: datetime | None = None
    run_in: timedelta | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None
    job_key: str | None = None
    job_key_mode: KeyMode = "replace"
    max_wait: timedelta | None = None
    concurrency_key: str | None = None
    keep_result: timedelta | None = None
    unique_for: timedelta | None = None

    def __post_init__(self) -> None:
        if self.run_in is not None and self.run_at is not None:
            raise OptionInvalid("run_in and run_at both say when the job is due: pass one of them")
        if self.expires_in is not None and self.expires_at is not None:
            raise OptionInvalid("expires_in and expires_at both say when the job expires: pass one of them")

    def values(self) -> dict[str, Any]:
        """Return the options by name."""
        return {name: getattr(self, name) for name in EnqueueOptions.__annotations__}

    def for_batch(self) -> JobOptions:
        """Return these options for many jobs added at once. Raises OptionInvalid for one that only one job may have."""
        for name in _SINGLE_JOB_ONLY:
            if getattr(self, name) is not None:
                raise OptionInvalid(f"{name} is an option of one job: enqueue these one by one")
        return self


_SINGLE_JOB_ONLY: Final = [name for name, option in _TABLE.items() if SINGLE_JOB_ONLY in option]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob(JobOptions):
    """One job to insert: its checked options, and fields no caller can set. Due at ``run_at``, or after ``run_in``.

    ``public_id`` is the unguessable id of its result; ``keep_result`` None keeps the result for the task's time.
    """

    task: str
    store_id: StoreId | None
    payload: str
    tick: datetime | None = None
    trace: str | None = None
    public_id: UUID | None = None
    ordered: str | None = None

    def __post_init__(self) -> None:
        """Check nothing: the options were checked where they were given."""

    @property
    def is_plain(self) -> bool:
        """Whether its row is just added, without a search for existing ones."""
        return self.job_key is None and self.unique_for is None

    @property
    def is_due(self) -> bool:
        """Whether it is due now, by this host's clock, which decides whether to wake a worker."""
        if self.run_in is not None:
            return self.run_in <= timedelta(0)
        return self.run_at is None or self.run_at <= datetime.now(UTC)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements that add jobs: ``options`` is JSON of all options that are set."""
        options = {name: value for name in _STORED if (value := getattr(self, name)) is not None}
        if self.trace is not None:
            options["trace"] = json.loads(self.trace)
        return {"task": self.task, "payload": self.payload, "store_id": self.store_id, "options": _to_json(options)}


# Instants, durations and ids as PostgreSQL reads them, even of subclasses.
_to_json: Final = json.JSONEncoder(default=str).encode
# The keys of the ``options`` of a job's statements.
_STORED: Final = [field.name for field in fields(NewJob) if field.name not in ("task", "store_id", "payload", "trace")]


# Options of other libraries, and ours to use instead.
OTHER_WORDS: Final = {
    **dict.fromkeys(("bind", "pass_context", "takes_context"), "current_job() in the handler"),
    **dict.fromkeys(("retries", "max_retries", "retry"), "max_attempts=…, which counts the first run too"),
    **dict.fromkeys(("retry_backoff", "retry_backoff_max", "retry_delay", "default_retry_delay"), "backoff=Backoff(…)"),
    **dict.fromkeys(("exchange", "routing_key", "queue_name"), "queue='…'"),
    **dict.fromkeys(("countdown", "delay", "schedule_in"), "using(run_in=timedelta(…))"),
    **dict.fromkeys(("eta", "run_after", "schedule_at"), "using(run_at=…)"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout=timedelta(…)"),
    **dict.fromkeys(("ignore_result", "result_ttl", "result_expires"), "keep_result=timedelta(…)"),
    **dict.fromkeys(("link", "link_error"), "a flow: f.add(…, after=…, when='succeeded' or 'failed')"),
    "acks_late": "at_most_once=True instead of acks_late=False, and nothing instead of True",
    "autoretry_for": "retry_on=(…)",
    "dont_autoretry_for": "fail_on=(…)",
    "expires": "using(expires_in=timedelta(…)) or using(expires_at=…)",
    "lock": "concurrency_key='…'",
    "queueing_lock": "job_key='…'",
    "rate_limit": "rate='…'",
    "reject_on_worker_lost": "nothing instead of reject_on_worker_lost=True, and at_most_once=True instead of False",
    "retry_kwargs": "max_attempts=…, which counts the first run too, and backoff=Backoff(…)",
    "task_id": "job_key='…', of which one job waits at a time; a job's own id is that of its handle",
}


# Methods of tasks of other libraries, and ours to use instead.
_OTHER_METHODS: Final = {
    **dict.fromkeys(("delay", "defer", "send", "push"), "enqueue(…)"),
    **dict.fromkeys(("adelay", "defer_async"), "aenqueue(…)"),
    **dict.fromkeys(("s", "si", "signature", "subtask"), "call(…)"),
    **dict.fromkeys(("map", "starmap", "chunks"), "enqueue_many(…)"),
    "AsyncResult": "get_job(id)",
    "apply": "perform_job(task, …) of salon_jobs.testing",
    "request": "current_job() in the handler",
    "update_state": "current_job().progress(done, total) in the handler",
    "retry": "raise Retry(after=timedelta(…)), or let the error be raised",
    "apply_async": "using(…).enqueue(…)",
    "configure": "using(…)",
    "delay_on_commit": "enqueue(…), which is part of the open transaction",
}


def raise_attribute_error(task: object, name: str) -> Any:
    """Raise AttributeError, naming our equivalent of another library's method. Used as ``__getattr__`` of tasks."""
    hint = f"; use {_OTHER_METHODS[name]}" if name in _OTHER_METHODS else ""
    raise AttributeError(f"{type(task).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=task)


def our_option_for(name: str, known: Iterable[str]) -> str | None:
    """Return our equivalent of another library's option, if it is one of the known options, else None."""
    word = OTHER_WORDS.get(name, "")
    return word if word.partition("=")[0] in known else None


def refuse_unknown(options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an option that is not known here. Raises OptionInvalid, which says where it belongs or suggests one."""
    for name in options:
        if name in known:
            continue
        if name in TaskOptions.__annotations__:
            raise OptionInvalid(f"no option {name!r} of one enqueue; declare the task with it")
        if name in EnqueueOptions.__annotations__:
            raise OptionInvalid(f"no option {name!r} of a task; give it to each enqueue: using({name}=…)")
        hint = f"use {OTHER_WORDS[name]}" if name in OTHER_WORDS else suggest(name, known)
        raise OptionInvalid(f"no option {name!r}; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredLimits:
    """Limits on how many jobs of a task run at once and start, in total and per key. Raises OptionInvalid."""

    max_concurrency: int | None = None
    concurrency_key: str | None = None
    key_concurrency: int | None = None
    rate: float | None = None
    key_rate: float | None = None
    burst: int | None = None
    ordered: bool | Literal["skip_failed"] = False

    def __post_init__(self) -> None:
        if self.ordered and self.concurrency_key is None:
            raise OptionInvalid("ordered is about the jobs with the same concurrency_key: pass that too")
        if self.ordered and self.key_concurrency is not None:
            raise OptionInvalid("ordered jobs of a key run one by one: leave key_concurrency out")
        for name in ("key_concurrency", "key_rate"):
            if getattr(self, name) is not None and self.concurrency_key is None:
                raise OptionInvalid(f"{name} limits the jobs with the same concurrency_key: pass that too")
        if self.burst is not None and self.rate is None and self.key_rate is None:
            raise OptionInvalid("burst is how many starts a rate saves up: pass rate or key_rate too")

    @property
    def per_key(self) -> int | None:
        """How many jobs with the same key may run at once: 1 by default; None without keys, or with a rate alone.

        None if ordered, too: then only one of them is due at a time, and claims have nothing to count.
        """
        if self.concurrency_key is None or self.ordered or (self.key_concurrency is None and self.key_rate is not None):
            return None
        return self.key_concurrency or 1


def parse_rate(rate: float | str, name: str = "rate") -> float:
    """Return how many jobs may start per second, from a number or from text such as "100/m". Raises OptionInvalid."""
    with suppress(ValueError, KeyError):
        number, slash, unit = str(rate).partition("/")
        value = float(number) / (RATE_UNITS[unit.strip()] if slash else 1)
        if 0 < value <= 1_000_000:
            return value
    allowed = 'a number of jobs per second above 0, or text such as "100/m" (of s, m, h and d)'
    raise OptionInvalid(f"{name} must be {allowed}, not {short_repr(rate)}")


# Options that a task declared at_most_once cannot have, and why.
_REPEATING: Final = {
    "max_attempts": "which is always 1",
    "retry_on": "since no error is retried; discard_on is possible",
    "fail_on": "since every error fails its job; discard_on is possible",
    "backoff": "since nothing is retried",
    "chunk": "whose jobs run one by one after an error",
}


def refuse_repetition(options: Mapping[str, object]) -> None:
    """Refuse options that contradict ``at_most_once``. Raises OptionInvalid naming the field."""
    for name, why in _REPEATING.items():
        value = options.get(name)
        if value is not None and not (name == "max_attempts" and value == 1):
            raise OptionInvalid(
                f"at_most_once does not go with {name}={short_repr(value)}, {why}: leave one of them out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRules:
    """Errors (and subclasses) of a task that are retried, that fail the job at once, and that discard it.

    Raises TaskInvalid when two overlap.
    """

    retry_on: tuple[type[BaseException], ...] | None = None
    fail_on: tuple[type[BaseException], ...] | None = None
    discard_on: tuple[type[BaseException], ...] | None = None

    def __post_init__(self) -> None:
        given = {field.name: kinds for field in fields(self) if (kinds := getattr(self, field.name)) is not None}
        for (name, kinds), (other, others) in combinations(given.items(), 2):
            for one, another in product(kinds, others):
                if issubclass(one, another) or issubclass(another, one):
                    raise TaskInvalid(
                        f"{name} has {one.__name__} and {other} has {another.__name__}, so an error could be both:"
                        " neither may be a subclass of the other"
                    )

    def outcome(self, error: BaseException) -> Errored | Cancelled:
        """Return the outcome of a run that raised this error."""
        if isinstance(error, Retry):
            return Errored(error.error, delay=error.after)
        if isinstance(error, self.discard_on or ()):
            return Cancelled(DISCARDED, f"{type(error).__name__}: {report(error).message}")
        is_final = isinstance(error, self.fail_on or ())
        return Errored(error, retryable=not is_final and (self.retry_on is None or isinstance(error, self.retry_on)))


# A run gets at least this much of its timeout, however little remains of the wait timeout.
_LEAST_RUN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts of a task. Raises OptionInvalid for a timeout that needs another one.

    ``timeout`` limits a run, ``wait_timeout`` the wait since the job became due. ``wait_overtime`` is extra grace
    before the wait timeout counts. With ``waiting_shortens_timeout``, a run gets no more time than remains of the wait
    timeout.
    """

    timeout: timedelta | None = None
    wait_timeout: timedelta | None = None
    wait_overtime: timedelta | None = None
    waiting_shortens_timeout: bool = False

    def __post_init__(self) -> None:
        if self.wait_overtime is not None and self.wait_timeout is None:
            raise OptionInvalid("wait_overtime is grace before a wait_timeout counts: pass that too")
        if self.waiting_shortens_timeout and (self.timeout is None or self.wait_timeout is None):
            raise OptionInvalid(
                "waiting_shortens_timeout shortens the timeout to what is left of the wait_timeout: pass both"
            )

    @property
    def any(self) -> bool:
        """Whether any timeout is set."""
        return any(getattr(self, field.name) for field in fields(self))

    def expiry(self, waited_s: float) -> str | None:
        """Return why a job that waited this long is no longer started, or None if it is started."""
        if self.wait_timeout is None:
            return None
        limit_s, counted_s = self.wait_timeout.total_seconds(), self._counted_s(waited_s)
        if counted_s <= limit_s:
            return None
        counted = "" if self.wait_overtime is None else f" {in_seconds(counted_s)} of it after the overtime,"
        return f"waited {in_seconds(waited_s)},{counted} longer than {in_seconds(limit_s)}"

    def run_s(self, waited_s: float) -> float | None:
        """Return how long a run may take after this wait, in seconds; None without a timeout."""
        if self.timeout is None:
            return None
        whole_s = self.timeout.total_seconds()
        if not self.waiting_shortens_timeout or self.wait_timeout is None:
            return whole_s
        left_s = self.wait_timeout.total_seconds() - self._counted_s(waited_s)
        return min(whole_s, max(left_s, _LEAST_RUN_S))

    def _counted_s(self, waited_s: float) -> float:
        """Return how much of a wait counts towards the wait timeout."""
        return waited_s if self.wait_overtime is None else max(0.0, waited_s - self.wait_overtime.total_seconds())
