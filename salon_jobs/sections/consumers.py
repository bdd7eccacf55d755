"""Declares one source that consume_queue reads: ``SALON_JOBS["CONSUMERS"][name]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast
from uuid import UUID

from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid
from salon_jobs.sections.reading import count, duration, names, one_of, read_section, setting, texts

# As the column of the inbox.
LONGEST_NAME: Final = 100
# What TASKS calls the only task of messages that name no event.
ANY_EVENT: Final = "*"


def _source(value: Any) -> str:
    try:
        return parse_destination(value).name
    except (MessageInvalid, TypeError):
        raise ValueError("an ARN or RN, such as 'rn::nats:::orders' or 'rn::azurequeue:::orders'") from None


def _store(value: Any) -> str | UUID:
    try:
        return value if value == "envelope" or isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError("'envelope', or a store's uuid") from None


def _producers(value: Any) -> tuple[str, ...] | None:
    return None if value is None else names(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Holds one source that consume_queue reads, and which event of it becomes which task.

    ``source`` is an ARN or RN. ``wait``: how long a look waits for a message. ``visibility`` None: the source's own.
    ``max_deliveries``: how often a message that can not become a job now, but perhaps later, is tried. ``store``: whose
    jobs a store task's are, ``envelope`` or always the same. ``producers``: whose messages are taken; None:
    everybody's. ``envelope`` none: bodies are the arguments alone, as JSON, and the message id is the broker's.
    """

    source: str = setting("", _source)
    tasks: Mapping[str, str] = setting(dict[str, str], texts)
    envelope: str = setting("salon_jobs", one_of("salon_jobs", "none"))
    batch: int = setting(100, count(1, 1000))
    wait: timedelta = setting(timedelta(seconds=1), duration())
    visibility: timedelta | None = setting(None, duration(optional=True))
    max_deliveries: int = setting(5, count(1, 1000))
    replays: str = setting("accept", one_of("accept", "refuse"))
    store: str | UUID = setting("envelope", _store)
    producers: tuple[str, ...] | None = setting(None, _producers)

    @property
    def has_envelope(self) -> bool:
        """Return whether messages say more than their payload: event, producer, store, id."""
        return self.envelope != "none"


def read_consumers(value: Any, *, path: str) -> dict[str, ConsumerSettings]:
    """Read all consumers by name. Raises ConfigurationError naming the field."""
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
    if not all(map(_is_name, given)):
        raise ConfigurationError(f"{path} must be a dict of names, of 1 to {LONGEST_NAME} characters, to dicts")
    return {name: _read(each, path=f"{path}[{name!r}]") for name, each in given.items()}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable()


def _read(value: object, *, path: str) -> ConsumerSettings:
    read = read_section(ConsumerSettings, value, path=path)
    if not read.source:
        raise ConfigurationError(f"{path}['SOURCE'] must be set: an ARN or RN, such as 'rn::nats:::orders'")
    if not read.tasks:
        raise ConfigurationError(f"{path}['TASKS'] must map at least one event to a task, such as {{'e': 'do-it'}}")
    if not read.has_envelope:
        _check_without_envelope(read, path=path)
    return read


def _check_without_envelope(read: ConsumerSettings, *, path: str) -> None:
    """Refuse what needs an envelope."""
    if parse_destination(read.source).service != "azurequeue":
        raise ConfigurationError(
            f"{path}['ENVELOPE'] 'none' is for queues of Azure, such as 'rn::azurequeue:::parse-tasks', "
            f"not {read.source!r}: other brokers carry the event in a header"
        )
    if set(read.tasks) != {ANY_EVENT}:
        raise ConfigurationError(
            f"{path}['TASKS'] must be {{{ANY_EVENT!r}: 'do-it'}}, one task for all, with ENVELOPE 'none': "
            "bodies without an envelope name no event"
        )
    if read.producers is not None:
        raise ConfigurationError(
            f"{path}['PRODUCERS'] can not be set with ENVELOPE 'none': bodies without an envelope name no producer"
        )
    if read.replays == "refuse":
        raise ConfigurationError(
            f"{path}['REPLAYS'] can not be 'refuse' with ENVELOPE 'none': bodies without an envelope do not say "
            "what they repeat"
        )
