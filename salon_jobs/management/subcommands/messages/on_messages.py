"""Does one thing to many messages: ``salon_jobs messages retry`` and ``salon_jobs messages skip``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.messages import MessageStatus, OperatedMessage
from salon_jobs.management.asking import ask
from salon_jobs.management.operating import in_batches, tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.criteria import FILTERS, add_filters, chosen, message_id, numbers
from salon_jobs.outbox.operate import BATCH, retry_messages, skip_messages


class OnMessages(Subcommand):
    """Does one thing to messages named by ids, or to all failed ones that the options name together."""

    done: ClassVar[str]
    not_done: ClassVar[str]
    operate: ClassVar[Callable[..., list[OperatedMessage]]]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages")
        add_filters(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each message")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, do it, tell. Raises CommandError when nothing was named, or nobody can be asked."""
        ids = self._ids(options)
        if ids and not options["yes"]:
            ask(f"{self.name.capitalize()} {len(ids):,} messages?", err, otherwise=self.not_done, remedy="add --yes")
        results = in_batches(ids, partial(self.operate, using=conf.reader_database), batch=BATCH, err=err)
        tell(results, self.done, lambda result: result.id, as_json=options["json"], out=out)

    def _ids(self, options: dict[str, Any]) -> Sequence[int]:
        filtered = any(options[name] is not None for name in FILTERS)
        if bool(options["id"]) == filtered:
            raise CommandError("name the messages by ids, or the failed ones by --aggregate-type, --event, --store …")
        if options["id"]:
            return numbers(options["id"])
        failed, _ = chosen(options, MessageStatus.FAILED)
        return sorted(failed.values_list("pk", flat=True))


class RetryMessages(OnMessages):
    """Has failed messages sent again."""

    name = "retry"
    help = "Have messages sent again: failed ones with all their tries, waiting ones at once."
    done = "sent again"
    not_done = "nothing is sent again"
    operate = staticmethod(retry_messages)


class SkipMessages(OnMessages):
    """Gives messages up."""

    name = "skip"
    help = "Give messages up: they are never sent, and what they held back goes on."
    done = "skipped"
    not_done = "nothing was skipped"
    operate = staticmethod(skip_messages)
