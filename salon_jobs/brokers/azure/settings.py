"""The section ``AZURE`` of the settings."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from salon_jobs.conf import section
from salon_jobs.conf.reader import duration, names, optional, secret_text, setting

QUEUE_NAME: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_SHORTEST_VISIBILITY, _LONGEST_VISIBILITY = timedelta(seconds=1), timedelta(days=7)


def _connection_string(value: Any) -> Any:
    """Read an account's connection string. Errors do not show it."""
    try:
        value = secret_text(value)
    except ValueError:
        value = ""
    parts = [part.partition("=") for part in value.rstrip(";").split(";")]
    fields = {name.lower(): content for name, _, content in parts if content}
    if len(fields) != len(parts):
        raise ValueError("a connection string of name=value parts joined by semicolons")
    if fields == {"usedevelopmentstorage": "true"}:
        return value
    if not fields.keys() & {"accountname", "queueendpoint"}:
        raise ValueError("a connection string that names the account (AccountName or QueueEndpoint)")
    if not fields.keys() & {"accountkey", "sharedaccesssignature"}:
        raise ValueError("a connection string with a key (AccountKey or SharedAccessSignature)")
    try:
        base64.b64decode(fields.get("accountkey", ""), validate=True)
    except binascii.Error:
        raise ValueError("a connection string whose AccountKey is complete: it is not base64") from None
    return value


def _visibility(value: Any) -> timedelta:
    visibility = duration(value)
    if not _SHORTEST_VISIBILITY <= visibility <= _LONGEST_VISIBILITY:
        raise ValueError("a timedelta or a number of seconds, from one second to seven days")
    return visibility


def _queues(value: Any) -> tuple[str, ...]:
    try:
        queues = names(value)
    except ValueError:
        queues = ("",)
    if not all(map(QUEUE_NAME.fullmatch, queues)):
        raise ValueError("a list of names of queues, such as ['parse-tasks']")
    return queues


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Settings for Azure Queue Storage.

    ``visibility_timeout``: how long a received message is hidden from other consumers. ``plain_queues``: queues whose
    message bodies are the bare payload, without an envelope.
    """

    connection_string: str | None = setting(None, optional(_connection_string), secret=True)
    visibility_timeout: timedelta = setting(timedelta(seconds=30), _visibility)
    plain_queues: tuple[str, ...] = setting((), _queues)


settings = section("AZURE", AzureSettings)
