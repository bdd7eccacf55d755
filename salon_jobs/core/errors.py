"""The errors of salon_jobs.

Every error has a stable ``code``, which also appears in log records and in the readiness answer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final

from salon_jobs.core.text import bounded, visible_lines

# No known name is longer.
_LONGEST_NAME: Final = 512


class SalonJobsError(Exception):
    """Base class of all errors of salon_jobs. Their texts are bounded, whatever the length of quoted values."""

    code: ClassVar[str] = "SALON_JOBS.ERROR"

    def __init__(self, *args: object) -> None:
        super().__init__(*[visible_lines(bounded(each)) if isinstance(each, str) else each for each in args])


class ConfigurationError(SalonJobsError):
    """A setting is missing, unknown or contradicts another one. Each argument names one fault."""

    code = "SETTINGS.INVALID"

    def __str__(self) -> str:
        return "\n".join(self.args)


class TaskInvalid(SalonJobsError):
    """A task declaration is invalid."""

    code = "JOB.TASK_INVALID"


class UnknownTask(SalonJobsError):
    """No task with this name is registered."""

    code = "JOB.UNKNOWN_TASK"


class PayloadInvalid(SalonJobsError):
    """The arguments do not fit the signature of the task."""

    code = "JOB.PAYLOAD_INVALID"


class PayloadUnknown(PayloadInvalid):
    """The payload has an argument, or names a backend of ``TASKS``, that this release does not know; another may."""

    code = "JOB.PAYLOAD_UNKNOWN"


class OptionInvalid(SalonJobsError):
    """An option of ``using`` or ``enqueue_job`` has an impossible value."""

    code = "JOB.OPTION_INVALID"


class EnqueueRefused(SalonJobsError):
    """The database refused the job: the connection may not enqueue for this store."""

    code = "JOB.ENQUEUE_REFUSED"


class JobDoesNotExist(SalonJobsError):
    """No job has this id, or it is gone without a kept result."""

    code = "JOB.DOES_NOT_EXIST"


class ResultInvalid(SalonJobsError):
    """The result of a handler cannot be kept, because it cannot be written as JSON."""

    code = "JOB.RESULT_INVALID"


class StepInvalid(SalonJobsError):
    """A step cannot run where it is called, or its name or its result cannot be kept."""

    code = "JOB.STEP_INVALID"


class EndRefused(SalonJobsError):
    """The handler returned, but the database refuses to record that, or to keep the result; its effects stand."""

    code = "JOB.END_REFUSED"


class FlowInvalid(SalonJobsError):
    """A member of a flow is not a call of a task, or of another flow or store, or the job is not a member of a flow."""

    code = "JOB.FLOW_INVALID"


class NoResult(SalonJobsError):
    """The job has no result: it has not succeeded, or its task keeps none."""

    code = "JOB.NO_RESULT"


class JobFailed(SalonJobsError):
    """The awaited job failed, with the error of its last attempt: ``error_class`` and ``message``."""

    code = "JOB.FAILED"

    def __init__(self, text: str, *, error_class: str = "", message: str = "") -> None:
        super().__init__(text)
        self.error_class, self.message = error_class, message


class JobCancelled(SalonJobsError):
    """The awaited job was cancelled, for its ``reason``."""

    code = "JOB.CANCELLED"

    def __init__(self, text: str, *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class WaitTimedOut(SalonJobsError, TimeoutError):
    """The awaited job has not ended in time; it goes on."""

    code = "JOB.WAIT_TIMED_OUT"


class WaitRefused(SalonJobsError):
    """Waiting for a job inside the transaction that enqueued it would never end."""

    code = "JOB.WAIT_REFUSED"


class UnknownFanOut(SalonJobsError):
    """No fan-out has this id; its record may have been pruned."""

    code = "JOB.UNKNOWN_FAN_OUT"


class MessageInvalid(SalonJobsError):
    """A message cannot be sent as it is: its destination, size, event, group or headers are invalid."""

    code = "OUTBOX.MESSAGE_INVALID"


class EmitRefused(SalonJobsError):
    """``emit`` was called outside a transaction, or the database refused the message."""

    code = "OUTBOX.EMIT_REFUSED"


class CronInvalid(SalonJobsError):
    """A cron line, its time zone or its target is invalid."""

    code = "CRON.INVALID"


class NotReady(SalonJobsError):
    """The process cannot work yet: the database is unavailable or the connection is not usable."""

    code = "WORKER.NOT_READY"


class SourceLost(NotReady):
    """A source of consume_queue does not answer, or its messages cannot be processed now."""

    code = "INBOX.SOURCE_LOST"


class Late(SalonJobsError):
    """The oldest due job, or the oldest unpublished message, has waited longer than a health check allows."""

    code = "WORKER.LATE"


class SchemaMissing(SalonJobsError):
    """The job tables are missing or not in the search path, or migrations are pending."""

    code = "WORKER.SCHEMA_MISSING"


class ForbiddenRole(SalonJobsError):
    """The process is connected as a role that a runtime must never use."""

    code = "WORKER.FORBIDDEN_ROLE"


class BootstrapMissing(SalonJobsError):
    """The roles are missing: run ``python manage.py bootstrap_roles`` before ``migrate``."""

    code = "ROLES.BOOTSTRAP_MISSING"


class RolesTaken(SalonJobsError):
    """Another database on the server already uses a role: choose another name, or share the role."""

    code = "ROLES.TAKEN"


class ConversionMissing(SalonJobsError):
    """The database is not owned by the role in the settings: run ``python manage.py salon_jobs convert``."""

    code = "ROLES.CONVERSION_MISSING"


class CatalogueDrift(SalonJobsError):
    """Row-level security or policies differ from the declared ones: run ``python manage.py salon_jobs doctor``."""

    code = "DATABASE.DRIFT"


class DangerousSetting(SalonJobsError):
    """Sessions of this role start with a setting under which no process may run, whatever its source."""

    code = "DATABASE.SETTING"


class FixIncomplete(SalonJobsError):
    """A finding could not be fixed, or remains afterwards; nothing was changed."""

    code = "DATABASE.FIX_INCOMPLETE"


class TenantContextError(SalonJobsError):
    """The tenant context was used in a way that could mix stores."""

    code = "TENANT.CONTEXT"


class StoreRefused(SalonJobsError):
    """The request has no store, or its user does not belong to the store; answered with ``status``."""

    code = "TENANT.REFUSED"

    def __init__(self, text: str, *, status: int = 403) -> None:
        super().__init__(text)
        self.status = status


class LeaseLost(SalonJobsError):
    """Another run owns the job now; everything this run wrote is rolled back."""

    code = "JOB.LEASE_LOST"


class OutcomeUnknown(SalonJobsError):
    """The database was promoted while a run waited for the answer to its COMMIT, and the job's row is gone.

    Either the run was committed, or the job was lost with the last transactions of the old server.
    """

    code = "JOB.OUTCOME_UNKNOWN"


class TransactionBroken(SalonJobsError):
    """A database error was swallowed, so the transaction can only be rolled back."""

    code = "DATABASE.TRANSACTION_BROKEN"


class NoCurrentJob(SalonJobsError):
    """``current_job()`` was called outside a running job."""

    code = "JOB.NO_CURRENT_JOB"


class HeldUp(SalonJobsError):
    """An operator's change would wait for a row or key that another transaction holds; nothing was changed."""

    code = "DATABASE.HELD_UP"


class ProcessDied(SalonJobsError):
    """The process that ran the job stopped sending heartbeats; the job was requeued."""

    code = "JOB.PROCESS_DIED"


class NotRepeated(SalonJobsError):
    """The only run of a task declared ``at_most_once`` was interrupted; how far it got is unknown."""

    code = "JOB.NOT_REPEATED"


class Expired(SalonJobsError):
    """The job waited past its task's wait timeout or its ``expires_at`` and was not started."""

    code = "JOB.EXPIRED"


class Interrupted(BaseException):
    """Raised inside a handler when the grace period of a shutdown ends: the job is rolled back and requeued.

    A BaseException, so that an ``except Exception`` around one item of many does not swallow it.
    """

    code: ClassVar[str] = "JOB.INTERRUPTED"


class CancelRequested(Interrupted):
    """Raised inside a handler that did not end within the grace after cancellation was requested."""

    code = "JOB.CANCEL_REQUESTED"


class TimedOut(Interrupted):
    """Raised inside a handler that exceeds its task's timeout; the attempt counts."""

    code = "JOB.TIMED_OUT"


def suggest(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known one, or else all of them."""
    names = list(known)
    if close := _closest(name, names):
        return f"did you mean {close!r}?"
    return f"choose one of {', '.join(names)}" if names else "there are none"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known name closest to an unknown one, or "" if none is close."""
    close = _closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def _closest(name: object, known: Iterable[str]) -> str:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return ""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def require_within(limit_s: float, age_s: float, complaint: str) -> None:
    """Raise NotReady with the complaint if it has lasted longer than the limit."""
    if age_s > limit_s:
        raise NotReady(f"{complaint} for {age_s:.0f} s; at most {limit_s:g} s are allowed")
