"""Sends messages again on purpose: ``salon_jobs messages replay``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import instant
from salon_jobs.management.asking import ask
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.criteria import message_id, numbers
from salon_jobs.outbox.replay import MessageCriteria, Replayed, replay_messages


class ReplayMessages(Subcommand):
    """Writes messages again under new ids, after a look at what it would be."""

    name = "replay"
    help = "Send messages again on purpose, as new ones in the order of the old; says how many first and asks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages")
        parser.add_argument("--aggregate-type", metavar="NAME", help="for this destination, in a range")
        parser.add_argument("--aggregate-id", metavar="ID", help="of this aggregate")
        parser.add_argument("--event", metavar="NAME", help="with this event")
        parser.add_argument("--from-id", type=int, metavar="N", help="from this number")
        parser.add_argument("--to-id", type=int, metavar="N", help="up to this number")
        parser.add_argument("--since", type=instant, metavar="TIME", help="written since: 12h, 7d, or ISO 8601")
        parser.add_argument("--until", type=instant, metavar="TIME", help="written before")
        parser.add_argument(
            "--status", action="append", choices=("published", "skipped", "failed"), help="these only; repeatable"
        )
        parser.add_argument("--by", metavar="WHO", default="", help="who sends them again, for the record")
        parser.add_argument("--reason", metavar="WHY", default="", help="why, for the record")
        parser.add_argument("--dry-run", action="store_true", help="count them and send nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Look, ask, do it, tell. Raises CommandError when nobody can be asked; OptionInvalid."""
        criteria = _criteria(options)
        using = conf.reader_database
        if options["dry_run"] or not options["yes"]:
            found = replay_messages(criteria, dry_run=True, using=using)
            if options["dry_run"]:
                _tell("would be sent again", found, options, out)
                return
            ask(
                f"Send {found.messages:,} messages again ({_ends(found)})?", err, otherwise="nothing was sent again",
                remedy="add --yes, or --dry-run to count only",
            )  # fmt: skip
        done = replay_messages(criteria, requested_by=options["by"], reason=options["reason"], using=using)
        _tell("sent again", done, options, out)


def _criteria(options: dict[str, Any]) -> MessageCriteria:
    names = ("aggregate_type", "aggregate_id", "event", "from_id", "to_id", "since", "until")
    given: dict[str, Any] = {name: options[name] for name in names if options[name] is not None}
    if options["status"]:
        given["statuses"] = tuple(dict.fromkeys(options["status"]))
    return MessageCriteria(ids=tuple(numbers(options["id"])), **given)


def _ends(found: Replayed) -> str:
    return f"{found.first} to {found.last}" if found.messages else "none"


def _tell(verb: str, found: Replayed, options: dict[str, Any], out: OutputWrapper) -> None:
    if options["json"]:
        out.write(json.dumps({"dry_run": options["dry_run"], **asdict(found)}))
        return
    for refused in found.refused:
        out.write(f"{refused.id}: {refused.detail}")
    out.write(f"{verb}: {found.messages:,} ({_ends(found)})")
