"""The section ``AZURE`` of the settings."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Meta

from salon_jobs.conf import section
from salon_jobs.conf.reader import SECRET, Section, duration, secret_text

# Requests of one process to the account at once.
AT_ONCE: Final = 16
QUEUE_NAME: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_SHORTEST_VISIBILITY, _LONGEST_VISIBILITY = timedelta(seconds=1), timedelta(days=7)


def _connection_string(value: Any) -> Any:
    """Read an account's connection string. Errors do not show it."""
    value = secret_text(value)
    parts = [part.partition("=") for part in value.rstrip(";").split(";")]
    fields = {name.lower(): content for name, _, content in parts if content}
    if len(fields) != len(parts):
        raise ValueError(_PARTS)
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


_PARTS: Final = "a connection string of name=value parts joined by semicolons"
_Queues = Annotated[
    tuple[Annotated[str, Meta(pattern=rf"^{QUEUE_NAME.pattern}\Z")], ...],
    Meta(description="a list of names of queues, such as ['parse-tasks']"),
]


class AzureSettings(Section, frozen=True):
    """Settings for Azure Queue Storage.

    ``visibility_timeout``: how long a received message is hidden from other consumers. ``plain_queues``: queues whose
    message bodies are the bare payload, without an envelope.
    """

    connection_string: Annotated[str, Meta(description=_PARTS), _connection_string, SECRET] | None = None
    visibility_timeout: Annotated[timedelta, _visibility] = timedelta(seconds=30)
    plain_queues: _Queues = ()


azure_settings = section("AZURE", AzureSettings)
