"""Declares how to reach Azure Queue Storage."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from salon_jobs.sections.reading import count, duration, names, setting

QUEUE_NAME: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_LEAST, _MOST = timedelta(seconds=1), timedelta(days=7)


def _connection_string(value: Any) -> Any:
    """Read an account's connection string; what is wrong is said without showing it."""
    if value is None:
        return None
    parts = [part.partition("=") for part in value.rstrip(";").split(";")] if isinstance(value, str) else []
    given = {name.lower(): text for name, _, text in parts if text}
    if not parts or len(given) != len(parts):
        raise ValueError("a connection string of name=value parts joined by semicolons, or None")
    if given == {"usedevelopmentstorage": "true"}:
        return value
    if not given.keys() & {"accountname", "queueendpoint"}:
        raise ValueError("a connection string that names the account (AccountName or QueueEndpoint)")
    if not given.keys() & {"accountkey", "sharedaccesssignature"}:
        raise ValueError("a connection string with a key (AccountKey or SharedAccessSignature)")
    try:
        base64.b64decode(given.get("accountkey", ""), validate=True)
    except binascii.Error:
        raise ValueError("a connection string whose AccountKey is complete: it is no base64") from None
    return value


def _visibility(value: Any) -> timedelta:
    visibility: timedelta = duration()(value)
    if not _LEAST <= visibility <= _MOST:
        raise ValueError("a timedelta or a number of seconds, from one second to seven days")
    return visibility


def _queues(value: Any) -> tuple[str, ...]:
    try:
        found = names(value)
    except ValueError:
        found = ("",)
    if not all(map(QUEUE_NAME.fullmatch, found)):
        raise ValueError("a list of names of queues, such as ['parse-tasks']")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Holds how to reach Azure Queue Storage.

    ``visibility_timeout``: how long a consumer has a message for itself. ``timeout``: of one request, to connect and
    to wait for each part of the answer. ``concurrency``: how many requests of one process are in flight at most.
    ``plain_queues``: those whose bodies are the payload alone, without an envelope.
    """

    connection_string: str | None = setting(None, _connection_string, secret=True)
    visibility_timeout: timedelta = setting(timedelta(seconds=30), _visibility)
    timeout: timedelta = setting(timedelta(seconds=5), duration())
    concurrency: int = setting(16, count(1, 256))
    plain_queues: tuple[str, ...] = setting((), _queues)
