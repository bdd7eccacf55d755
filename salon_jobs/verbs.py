"""Operators' verbs: effect, arguments, question and success message of each, for commands and admin.

``salon_jobs.control`` is the same for host code: it has the functions, with their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.db.models import Model
from django.utils.functional import lazy
from django.utils.translation import gettext

from salon_jobs.conf import is_given
from salon_jobs.core.records import ActionResult
from salon_jobs.core.units import gettext_noop as _
from salon_jobs.db.connections import alias_of
from salon_jobs.inbox import queries as inbox
from salon_jobs.jobs import control as jobs
from salon_jobs.jobs import limits
from salon_jobs.jobs.held import ChangedRows, Patience
from salon_jobs.models import (
    BlockedAggregate,
    CronEntryState,
    DestinationState,
    InboxMessage,
    Job,
    Limit,
    Message,
    Schedule,
)
from salon_jobs.outbox import control as messages
from salon_jobs.schedules import scheduler as schedulers
from salon_jobs.schedules import stored as schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """An action of operators on rows of one model.

    Most ``change`` rows: the function takes their values of ``key`` and ``using``, with ``takes_by`` the acting user,
    and the arguments in ``takes``; it returns a result for each, in their order. Others have their own interface, and
    ``using``. Nobody else calls the function: ``apply`` and ``call`` keep what every verb promises.
    """

    name: str
    of: type[Model]
    change: Callable[..., Any]
    # Permissions of the admin's users (none: only the command has it); staff of one store need ``for_stores`` too.
    permissions: tuple[str, ...]
    for_stores: bool = False
    key: str = "pk"
    # The models of which it locks rows, if not only those of ``of``; the likeliest first.
    locks: tuple[type[Model], ...] = ()
    takes_by: bool = False
    # Optional arguments: the success message of each instead of ``done``, and the error if all are missing but needed.
    takes: Mapping[str, str] = field(default_factory=dict[str, str])
    nothing_given: str = ""
    # Effect on a row in each state; a row in any other state does not change.
    effects: Mapping[str, str] = field(default_factory=dict[str, str])
    # The admin's name for selected rows (for one, without the text in brackets), its question before ("": none) and its
    # success message. The admin translates these texts when it shows them: they are also recorded, and the terminal's.
    label: str = ""
    question: str = ""
    done: str
    # The success message for a row whose change is still to come, as its result's ``detail`` says.
    asked: str = ""
    # The states of rows that offer it, if not those with effects (neither: all), and whether the list has a button.
    offered_in: tuple[str, ...] = ()
    in_rows: bool = False
    # Whether rows are changed in ascending order.
    oldest_first: bool = False
    # The command's help ("": there is no command), its success message, and the states of the rows that options select.
    help: str = ""
    reported: str = ""
    matching: tuple[str, ...] = ()

    def apply(
        self, keys: Sequence[Any], *, by: str, using: str, patience: Patience | None = None, **arguments: Any
    ) -> list[ActionResult[Any]]:
        """Change the rows of these keys; return a result for each. ``by`` is recorded where the verb takes it.

        Promises what ``call`` does.
        """
        if self.takes_by:
            arguments["by"] = by
        results: list[ActionResult[Any]] = self.call(keys, keys, using=using, patience=patience, **arguments)
        return results

    def call(
        self,
        keys: Sequence[Any],
        *given: Any,
        using: str | None = None,
        look: str | None = None,
        patience: Patience | None = None,
        **arguments: Any,
    ) -> Any:
        """Call the function of a verb with an interface of its own, as it is ``given``; errors name rows by ``keys``.

        In one transaction, or a savepoint of yours. Raises HeldUp within two seconds, with nothing changed, if another
        transaction holds a row or key; ``look`` is the alias that may see more of that than ``using``, if there is one.
        Several calls for one click share its ``patience``.
        """
        alias = alias_of(using)
        rows = ChangedRows(self.of, self.column, keys, self.locks or (self.of,))
        change = partial(self.change, *given, using=alias, **arguments)
        return (patience or Patience()).attempt(change, rows, using=alias, look=look)

    @property
    def column(self) -> str:
        """The column of ``key``, in SQL."""
        if self.key == "scope":
            return "kind || ':' || name"
        return f'"{self.of._meta.pk.column if self.key == "pk" else self.key}"'

    def is_offered_in(self, state: str) -> bool:
        """Return whether a row in this state offers the verb."""
        offered = self.offered_in or tuple(self.effects)
        return not offered or state in offered

    def done_with(self, arguments: Mapping[str, Any], translate: Callable[[str], str] = str) -> str:
        """Return the admin's success message for these arguments; in English, for the record, unless translated."""
        given = {name: value for name, value in arguments.items() if value is not False}
        done = [translate(self.takes[name]).format(value) for name, value in given.items() if self.takes.get(name)]
        return translate(_(" and ")).join(done) or translate(self.done)


def _named_scopes(sentence: str) -> str:
    # Without reading the settings: Django's checks of the admin need it, and ours report faults in the settings.
    scopes = gettext("queue, task or store") if is_given("STORE_MODEL") else gettext("queue or task")
    return gettext(sentence).format(scopes)


_RETRY: Final = _("Retry[ selected %(rows)s]")
_PAUSE: Final[Any] = {"label": _("Pause[ selected %(rows)s]"), "done": _("paused")}
_RESUME: Final[Any] = {"label": _("Resume[ selected %(rows)s]"), "done": _("resumed")}


def _pausing(
    of: type[Model],
    pause: Callable[..., Any],
    resume: Callable[..., Any],
    active: str,
    helps: tuple[str, str] = ("", ""),
    *,
    for_stores: bool = False,
) -> tuple[Verb, Verb]:
    """Return the verbs that pause rows in the state ``active`` and resume them, by one permission."""
    both: Any = {"of": of, "permissions": (f"pause_{of._meta.model_name}",), "for_stores": for_stores, "in_rows": True}
    return (
        Verb(name="pause", change=pause, takes_by=True, **_PAUSE, offered_in=(active,), help=helps[0], **both),
        Verb(name="resume", change=resume, **_RESUME, offered_in=("paused",), help=helps[1], **both),
    )


_of_jobs: Final = partial(Verb, of=Job, for_stores=True)
_of_limits: Final = partial(Verb, of=Limit, permissions=("change_limit",), key="scope", oldest_first=True)
_of_entries: Final = partial(Verb, of=CronEntryState)
_of_schedules: Final = partial(Verb, of=Schedule, for_stores=True)
_of_messages: Final = partial(Verb, of=Message, locks=(Message, BlockedAggregate))
_of_incoming: Final = partial(Verb, of=InboxMessage)
_scopes: Final[Any] = lazy(_named_scopes, str)
_RETRIED: Final = _("queued again, with at least one more attempt")
_STOPS_STARTS: Final = "Stop starting the jobs of a queue, task or store; claimed jobs continue."

VERBS: Final = (
    _of_jobs(
        name="retry",
        change=jobs.retry_jobs,
        permissions=("retry_job",),
        takes={"at": _("queued again for {:%Y-%m-%d %H:%M %Z}"), "from_start": _("retried from the start")},
        label=_RETRY,
        question=_("Failed and cancelled jobs in this selection will be queued again, with at least one more attempt."),
        effects={"failed": _RETRIED, "cancelled": _RETRIED},
        done=_("retried"),
        in_rows=True,
        # The first job in an order or a flow runs first. The others begin with the jobs that wait for the rest.
        oldest_first=True,
        help="Queue failed and cancelled jobs again, due now or later; jobs without attempts left get one more.",
        reported="queued again",
        matching=("failed",),
    ),
    _of_jobs(
        name="cancel",
        change=jobs.cancel_jobs_at_once,
        permissions=("cancel_job",),
        label=_("Cancel[ selected %(rows)s]"),
        question=_("Queued and failed jobs are cancelled now; running ones when their handler stops."),
        effects={
            **dict.fromkeys(("queued", "failed"), _("cancelled now")),
            "running": _("cancelled when the handler stops"),
        },
        done=_("cancelled"),
        asked=_("asked to end"),
        offered_in=("queued", "running"),
        in_rows=True,
        help="Cancel jobs: queued and failed ones at once; the worker of a running one is asked to end it.",
        reported="cancelled or asked to end",
        matching=("queued", "running"),
    ),
    _of_jobs(
        name="discard",
        change=jobs.discard_jobs,
        permissions=("discard_job",),
        label=_("Discard[ selected %(rows)s]"),
        question=_(
            "Discards the queued and failed jobs selected. They will not run again unless someone retries them."
        ),
        effects=dict.fromkeys(("queued", "failed"), _("discarded, to run again only after a retry")),
        done=_("discarded"),
        help="Discard queued and failed jobs: they will not run again unless someone retries them.",
        matching=("queued", "failed"),
    ),
    _of_jobs(
        name="change",
        change=jobs.change_jobs,
        permissions=("change_job",),
        takes={"priority": _("given priority {}"), "queue": _("given queue {}")},
        nothing_given=_("Give a priority, a queue or both."),
        label=_("Change priority or queue[ of selected jobs]"),
        question=_("Queued jobs in this selection will be changed."),
        effects={"queued": _("changed as given here")},
        done=_("changed"),
    ),
    _of_jobs(
        name="run_again",
        change=jobs.run_again,
        permissions=("add_job",),
        takes={"arguments": ""},
        label=_("Run again with other arguments"),
        question=_("Enqueues a new job like this one, with arguments that you can change. This one stays as it is."),
        done=_("run again"),
        offered_in=("failed", "cancelled", "succeeded"),
    ),
    # Of the queues, tasks and stores of the selected jobs.
    Verb(
        name="pause",
        of=Job,
        change=limits.pause_scopes,
        permissions=("add_limit", "change_limit"),
        label=_scopes(_("Pause or resume {}[ of selected jobs]")),
        question=_scopes(_("This pauses or resumes every job of the {} you choose, not only the selected ones.")),
        done=_("paused"),
    ),
    _of_limits(
        name="pause",
        change=limits.pause_scopes,
        takes_by=True,
        **_PAUSE,
        help=f"{_STOPS_STARTS} Workers follow within a second.",
    ),
    _of_limits(
        name="resume",
        change=limits.resume_scopes,
        **_RESUME,
        help="Start the jobs of a paused queue, task or store again; its limits stay.",
    ),
    _of_limits(
        name="limit",
        change=limits.limit,
        permissions=(),
        done=_("limited"),
        help="Limit how many jobs of a queue, task, store or key run at once in all processes, and how many start in "
        "a given time. Options you omit keep their value. Without options, list the current limits.",
    ),
    # By the admin's form.
    _of_limits(name="save", change=limits.save_limit, permissions=(), done=_("changed")),
    _of_limits(
        name="delete",
        change=limits.delete_limits,
        permissions=("delete_limit",),
        label=_("Delete[ selected %(rows)s]"),
        question=_("Deletes the selected limits and pauses. What the code declares applies again."),
        done=_("deleted"),
    ),
    _of_entries(
        name="run_now",
        change=schedulers.run_cron_entry,
        locks=(Job,),
        permissions=("run_cronentrystate",),
        label=_("Run[ selected entries] now"),
        done=_("run now"),
        offered_in=("declared", "paused"),
        in_rows=True,
    ),
    *_pausing(CronEntryState, schedulers.pause_cron_entries, schedulers.resume_cron_entries, "declared"),
    _of_entries(
        name="override",
        change=schedulers.override_cron_entries,
        permissions=("change_cronentrystate",),
        takes_by=True,
        takes={"line": _("due by {}, instead of the line in code")},
        label=_("Override the line[ of selected entries]"),
        question=_("The entries selected will be due by this line, whatever the code declares, until it is restored."),
        done=_("overridden"),
        offered_in=("declared", "paused"),
    ),
    _of_entries(
        name="restore",
        change=partial(schedulers.override_cron_entries, line=None),
        permissions=("change_cronentrystate",),
        label=_("Restore the line[ of selected entries]"),
        done=_("restored to the line in code"),
    ),
    *_pausing(Schedule, schedules.pause_schedules, schedules.resume_schedules, "active", for_stores=True),
    _of_schedules(
        name="run_now",
        change=schedules.run_schedule,
        locks=(Schedule, Job),
        permissions=("run_schedule",),
        label=_("Run[ selected schedules] now"),
        done=_("run now"),
        in_rows=True,
    ),
    _of_schedules(
        name="change",
        change=schedules.save_schedule,
        permissions=("change_schedule",),
        takes={"arguments": ""},
        label=_("Change[ selected schedule]"),
        question=_("The next ticks follow this. A schedule that is due as before keeps its next tick."),
        done=_("changed"),
    ),
    _of_schedules(
        name="delete",
        change=schedules.delete_schedules,
        permissions=("delete_schedule",),
        label=_("Delete[ selected %(rows)s]"),
        question=_("Deletes the selected schedules with their history. Jobs that they added stay."),
        done=_("deleted"),
    ),
    _of_messages(
        name="retry",
        change=messages.retry_messages,
        permissions=("retry_message",),
        label=_RETRY,
        done=_("retried"),
        offered_in=("failed", "blocked"),
        in_rows=True,
        oldest_first=True,  # messages that block others come before them
        help="Send messages again: failed ones with all their attempts, waiting ones at once.",
        reported="sent again",
        matching=("failed",),
    ),
    _of_messages(
        name="skip",
        change=messages.skip_messages,
        permissions=("skip_message",),
        label=_("Skip[ selected %(rows)s]"),
        question=_("Pending and failed messages in this selection will never be sent; those they block continue."),
        effects=dict.fromkeys(("pending", "failed"), _("will never be sent; messages that it blocks continue")),
        done=_("skipped"),
        offered_in=("pending", "blocked", "failed"),
        in_rows=True,
        oldest_first=True,
        help="Give up messages: they are never sent, and the messages they block continue.",
        matching=("failed",),
    ),
    _of_messages(
        name="send-skipped",
        change=messages.send_skipped_messages,
        permissions=(),
        done=_("to be sent"),
        help="Send messages that a list in the settings skipped, with their original IDs.",
        matching=("skipped",),
    ),
    _of_messages(
        name="replay",
        change=messages.replay_messages,
        permissions=("replay_message",),
        takes={"reason": ""},
        label=_("Send[ selected messages] again (replay)"),
        question=_("Replay?"),
        done=_("sent again"),
        offered_in=("published", "skipped", "failed"),
        help="Send messages again as new ones, in the original order. Counts them first, and asks for confirmation.",
    ),
    Verb(
        name="unpark",
        of=BlockedAggregate,
        locks=(BlockedAggregate, Message),
        change=messages.retry_heads,
        permissions=("retry_message",),
        key="head_id",
        label=_("Retry[ selected aggregates] now (unpark)"),
        done=_("unparked"),
        oldest_first=True,
        help="Retry the message that blocks each aggregate, at once.",
    ),
    *_pausing(
        DestinationState,
        messages.pause_destinations,
        messages.resume_destinations,
        "sending",
        (
            "Stop sending to a destination; messages are still written, and wait. Relays follow within a second.",
            "Resume a paused destination; waiting messages are sent in order.",
        ),
    ),
    _of_incoming(
        name="retry",
        change=inbox.retry_messages,
        permissions=("retry_inboxmessage",),
        label=_("Retry[ selected messages]"),
        done=_("marked for a retry"),
        offered_in=("rejected",),
        help="Have consume_queue retry rejected messages at its next poll.",
        reported="for consume_queue to retry at its next poll",
        matching=("rejected",),
    ),
    _of_incoming(
        name="dismiss",
        change=inbox.dismiss_messages,
        permissions=("dismiss_inboxmessage",),
        label=_("Dismiss[ selected messages]"),
        question=_("Rejected messages in this selection, and those waiting for a retry, will never become jobs."),
        effects=dict.fromkeys(("rejected", "retry"), _("will never become a job")),
        done=_("dismissed"),
        help="Dismiss messages that are rejected or wait for a retry: they never become jobs.",
        matching=("rejected", "retry"),
    ),
)


def verbs_of(model: type[Model]) -> dict[str, Verb]:
    """Return the verbs for rows of a model, by name."""
    return {verb.name: verb for verb in VERBS if verb.of is model}
