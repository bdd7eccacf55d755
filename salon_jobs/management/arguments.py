"""Command-line arguments shared by several commands."""

from __future__ import annotations

import argparse
import getpass
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from uuid import UUID

from django.core.management.base import CommandParser

from salon_jobs.conf.reader import log_level as read_log_level
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.arguments import LAST_ID, as_uuid, is_id
from salon_jobs.core.errors import did_you_mean
from salon_jobs.core.records import StoreId
from salon_jobs.core.text import bounded, short_repr, visible
from salon_jobs.jobs import registry
from salon_jobs.process.health_server import parse_address

_MOST = 2**31 - 1


def positive(text: str) -> int:
    """Parse a whole number above zero, for argparse."""
    value = int(text)
    if not 1 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"must be 1 or more, and {_MOST:,} at most")
    return value


def row_id(text: str) -> int:
    """Parse the number of a row, for argparse."""
    with suppress(ValueError):
        if is_id(number := int(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {LAST_ID}, not {short_repr(text)}")


def row_or_uuid(text: str) -> int | UUID:
    """Parse the number of a row, or its UUID, for argparse."""
    with suppress(argparse.ArgumentTypeError):
        return row_id(text)
    if (uuid := as_uuid(text)) is not None:
        return uuid
    raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {LAST_ID} or a UUID, not {short_repr(text)}")


def store(text: str) -> StoreId:
    """Parse the key of a store, for argparse."""
    try:
        return store_key().parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {short_repr(text)}") from None


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, for argparse."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def log_level(text: str) -> str:
    """Parse the name of a log level in any case, for argparse."""
    try:
        level: str = read_log_level(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error}, not {short_repr(text)}") from error
    return level


def os_user() -> str:
    """Return the name of the operating system's user who runs this command, or the number of one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user who is not in /etc/passwd; which error depends on the Python
        return f"uid {os.getuid()}"


_LONGEST = timedelta(days=36_500)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def duration(text: str) -> timedelta:
    """Parse a whole number with its unit (90s, 30m, 12h, 7d, 2w) above zero, for argparse."""
    number, unit = text[:-1], text[-1:]
    if number.isascii() and number.isdecimal() and len(number) <= 6 and int(number) > 0 and unit in _UNITS:
        age = timedelta(**{_UNITS[unit]: int(number)})
        if age <= _LONGEST:
            return age
    raise argparse.ArgumentTypeError(
        f"{short_repr(text)} is not a duration; write 90s, 30m, 12h, 7d or 2w, 36500d at most"
    )


def iso_instant(text: str) -> datetime:
    """Parse an aware ISO 8601 instant, for argparse."""
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at
    raise argparse.ArgumentTypeError(
        f"{short_repr(text)} is not an ISO 8601 instant with a time zone; write 2026-05-05T18:00:00Z"
    )


class FromNow(NamedTuple):
    """Instant by its distance from the database's time, which the command adds once it is connected."""

    distance: timedelta


def instant(text: str, direction: int = -1) -> datetime | FromNow:
    """Parse an age (90s, 12h, 7d …), in ``direction`` 1 a time from now, or an aware ISO 8601 instant, for argparse."""
    with suppress(argparse.ArgumentTypeError):
        return FromNow(direction * duration(text))
    with suppress(argparse.ArgumentTypeError):
        return iso_instant(text)
    example = "12 hours ago" if direction < 0 else "in 12 hours"
    raise argparse.ArgumentTypeError(
        f"{short_repr(text)} is not a time; write 12h for {example}, or 2026-05-06T03:00+09:00"
    )


instant_ahead: Final = partial(instant, direction=1)
_HAS: Final = {"task": "has that name", "queue": "names that queue"}


def unknown_names(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each value of ``--task`` and ``--queue`` that no task has.

    Not an error: operators also handle jobs of another release, and queues that only ``using`` names.
    """
    for kind, names in {"task": registry.task_names(), "queue": registry.queue_names()}.items():
        value: Any = options.get(kind)
        for name in [value] if isinstance(value, str) else value or ():
            if name not in names:
                hint = did_you_mean(name, names)
                yield f"note: --{kind} {short_repr(name)}: no task of this release {_HAS[kind]}{hint}"


class ShortParser(CommandParser):
    """Parser with errors that are short and visible, whatever was given."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message; for an invalid choice close to a valid one, name only the latter."""
        what, invalid, choices = message.partition(" (choose from ")
        if invalid and (hint := did_you_mean(what.rpartition(": ")[2].strip("'"), re.findall(r"[\w-]+", choices))):
            message = f"{what}{hint}"
        super().error(visible(bounded(message, _LONGEST_ERROR)))
        raise AssertionError  # it has raised or exited


_LONGEST_ERROR: Final = 2_000


class TakesArguments(Protocol):
    """A parser, or a group of its arguments."""

    def add_argument(self, *names: str, **settings: Any) -> Any: ...


# Options that several subcommands share.
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--yes": {"action": "store_true", "help": "do not ask for confirmation"},
    "--json": {"action": "store_true", "help": "write JSON"},
    "--share-roles": {"action": "store_true", "help": "use roles that other databases on the server already use"},
    "--dry-run": {"action": "store_true", "help": "count only, change nothing"},
    "--at": {
        "type": instant_ahead,
        "metavar": "TIME",
        "help": "when they are due: from now (12h) or an ISO 8601 instant",
    },
    "--from-start": {"action": "store_true", "help": "run again the steps that they have done"},
    "--limit": {"type": positive, "default": 50, "metavar": "N", "help": "list at most N (default 50)"},
    "--task": {"metavar": "NAME", "help": "of this task"},
    "--queue": {"metavar": "NAME", "help": "of this queue"},
    "--store": {"type": store, "metavar": "ID", "help": "of this store"},
    "--since": {"type": instant, "metavar": "TIME", "help": "added after: an age (12h, 7d) or an ISO 8601 instant"},
    "--until": {"type": instant, "metavar": "TIME", "help": "added before"},
    "--aggregate-type": {"metavar": "NAME", "help": "for this destination"},
    "--aggregate-id": {"metavar": "ID", "help": "of this aggregate"},
    "--event": {"metavar": "NAME", "help": "with this event"},
}


def add_options(parser: TakesArguments, *names: str) -> None:
    """Add shared options by name."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])
