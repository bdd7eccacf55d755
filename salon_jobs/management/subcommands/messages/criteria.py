"""Declares the options by which messages are named, and reads the ids that people give."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import instant
from salon_jobs.models import Message
from salon_jobs.outbox.find import NEWEST, find_messages

FILTERS = ("aggregate_type", "aggregate_id", "event", "store", "since")


def message_id(text: str) -> int | UUID:
    """Parse an id: the number, or the uuid that brokers and consumers know, for argparse."""
    if text.isascii() and text.isdecimal() and int(text) < 2**63:
        return int(text)
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a message: neither a number nor a uuid") from error


def add_filters(parser: CommandParser) -> None:
    """Add the options by which messages are named together."""
    parser.add_argument("--aggregate-type", metavar="NAME", help="for this destination")
    parser.add_argument("--aggregate-id", metavar="ID", help="of this aggregate")
    parser.add_argument("--event", metavar="NAME", help="with this event")
    parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
    parser.add_argument(
        "--since", type=instant, metavar="TIME", help="written since: an age (12h, 7d) or an instant in ISO 8601"
    )


def chosen(options: dict[str, Any], status: str | None) -> tuple[QuerySet[Message], bool]:
    """Return the messages that the options name, the newest first, and whether every message was looked at."""
    wanted = {name: options[name] for name in FILTERS if name != "store"}
    return find_messages(status=status, store_id=options["store"], using=conf.reader_database, **wanted)


def numbers(ids: Sequence[int | UUID]) -> list[int]:
    """Return the numbers of messages, each once. Raises CommandError for uuids that no message has."""
    uuids = [each for each in ids if isinstance(each, UUID)]
    rows = Message.objects.using(conf.reader_database).filter(message_id__in=uuids).values_list("message_id", "id")
    known: dict[UUID, int] = dict(rows)
    if missing := [str(each) for each in uuids if each not in known]:
        raise CommandError(f"there is no message {', '.join(missing)}")
    return list(dict.fromkeys(known[each] if isinstance(each, UUID) else each for each in ids))


def looked_at() -> str:
    """Say that not every message was looked at."""
    return f"only the newest {NEWEST:,} ids were looked at; --status failed or skipped looks at all of these"
