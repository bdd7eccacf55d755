"""System checks that messages name who sends them, wherever any can be emitted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register

from salon_jobs.conf import given_keys, root_urlconf
from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError

# The sections of the brokers, and the services by which consumers read from them.
_BROKERS: Final = {"NATS": {"nats"}, "SNS": {"sns", "sqs"}, "AZURE": {"azurequeue"}}
# Keys of OUTBOX that consumers alone need.
_OF_CONSUMERS: Final = {"SOURCES", "RETAIN_INBOX"}
# No module of salon_jobs imports it until somebody asks for emit, emit_many or Draft.
_EMIT: Final = "salon_jobs.outbox.emit"


@register("salon_jobs")
def check_producer(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Require ``OUTBOX["PRODUCER"]`` where the settings show an outbox, or loaded code imports ``emit``."""
    try:
        if conf.outbox.producer is not None:
            return []
        sign = _section_in_use() or ("the code imports emit" if _emit_is_loaded() else "")
    except ConfigurationError:
        return []  # E001
    return [_missing(sign)] if sign else []


@register(Tags.urls)
def check_producer_of_views(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Require it also where only views import ``emit``: they are loaded by the URLconf, as for Django's own checks."""
    urlconf = root_urlconf()
    if urlconf is None or _emit_is_loaded():
        return []
    importlib.import_module(urlconf)
    try:
        told_by_now = conf.outbox.producer is not None or bool(_section_in_use())
    except ConfigurationError:
        return []  # E001
    return [] if told_by_now or _EMIT not in sys.modules else [_missing("the code imports emit")]


@cache
def _emit_is_loaded() -> bool:
    """Tell whether ``emit`` was imported when the first check of this process asked: the URLconf may not be yet."""
    return _EMIT in sys.modules


def _section_in_use() -> str:
    """Name a section of SALON_JOBS that is there for messages to be sent, or return an empty string.

    That of a broker counts unless a consumer reads from it.
    """
    if given_keys("OUTBOX") - _OF_CONSUMERS:
        return "SALON_JOBS['OUTBOX'] is"
    read = {parse_destination(consumer.source).service for consumer in conf.consumers.values()}
    sending = (key for key, services in _BROKERS.items() if given_keys(key) and not services & read)
    return next((f"SALON_JOBS[{key!r}] is" for key in sending), "")


def _missing(sign: str) -> CheckMessage:
    hint = (
        "set it to the name of this application, which every message carries: "
        "SALON_JOBS = {'OUTBOX': {'PRODUCER': 'shop'}}"
    )
    return Error(f"SALON_JOBS['OUTBOX']['PRODUCER'] is not set, and {sign}", hint=hint, id="salon_jobs.E052")
