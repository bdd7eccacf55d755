"""Failure of a message: the attempts that the broker's answer costs it, and the row that blocks its aggregate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import transaction

from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.error_report import shown_message
from salon_jobs.core.events import log_event
from salon_jobs.core.tracing import MessageFailure, report_failure
from salon_jobs.db.statements import run_raw
from salon_jobs.outbox.queries import LONGEST_CODE, LONGEST_ERROR, identities

_LONGEST_WAIT: Final = timedelta(hours=1)
# Retries per second and destination of messages that nothing accepts: each costs about half a millisecond, which the
# other messages of the destination need.
_RETRIES_PER_S: Final = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """Message that could not be published on its ``tries``-th attempt; ``final``: it is not retried.

    ``tries`` is 0 if nothing at its destination accepts the message now: it is charged no attempt, and always retried.
    """

    message: OutgoingMessage
    answer: PublishFailure
    tries: int = 0
    wait: timedelta = timedelta()
    final: bool = False

    @classmethod
    def of(cls, message: OutgoingMessage, answer: PublishFailure) -> Failure:
        """Return the failure for an answer, which is RETRY, REFUSED or UNRESOLVABLE."""
        if answer.verdict is Verdict.UNRESOLVABLE:
            return cls(message, answer)
        tries = message.retry_count + 1
        base = conf.outbox.retry_backoff
        wait = Backoff(base=base, cap=max(base, _LONGEST_WAIT)).delay(tries)
        return cls(message, answer, tries, wait, answer.verdict is Verdict.REFUSED or tries >= conf.outbox.retry_count)


def write_failures(failures: Sequence[Failure], *, owner: int, on_hold: int, using: str) -> set[int]:
    """Write failures of one destination, log them, and return the IDs of the messages with a new failure.

    Each blocks its aggregate: until its next attempt, or parked for an operator if it is final. Failures in partitions
    that this owner has lost are not written. ``on_hold`` is the number of waiting aggregates of the destination, over
    which the retries of messages that nothing accepts are spread.
    """
    unresolvable = [failure for failure in failures if not failure.tries]
    charged = [failure for failure in failures if failure.tries]
    new: set[int] = set()
    if unresolvable:
        parameters = {**_parameters(unresolvable, owner), "wait_s": on_hold / _RETRIES_PER_S}
        new = {row[0] for row in run_raw("block_unresolvable", parameters, using=using)}
        newly_blocked = [each for each in unresolvable if each.message.id in new and not each.answer.quiet]
        if newly_blocked:  # one line for all that were found together, naming the first
            first = _log_fields(newly_blocked[0])
            log_event(logging.WARNING, events.MESSAGES_UNRESOLVABLE, **first, messages=len(newly_blocked))
    if charged:
        attempts = {
            "tries": [failure.tries for failure in charged],
            "finals": [failure.final for failure in charged],
            "waits": [failure.wait.total_seconds() for failure in charged],
        }
        with transaction.atomic(using=using):
            written = {
                row[0] for row in run_raw("mark_unpublished", _parameters(charged, owner) | attempts, using=using)
            }
            charged = [failure for failure in charged if failure.message.id in written]
            ids = [failure.message.id for failure in charged]
            types = [failure.message.aggregate_type for failure in charged]
            aggregates = [failure.message.aggregate_id for failure in charged]
            codes = [failure.answer.code[:LONGEST_CODE] for failure in charged]
            run_raw("unblock", {"heads": ids, "types": types, "aggregates": aggregates}, using=using)
            run_raw("block", {"ids": ids, "codes": codes}, using=using)
        new |= written
        for failure in charged:
            fields: dict[str, Any] = {**_log_fields(failure), "attempt": failure.tries}
            if not failure.final:
                retry_in_s = round(failure.wait.total_seconds(), 1)
                log_event(logging.WARNING, events.MESSAGE_RETRIED, **fields, retry_in_s=retry_in_s)
                continue
            message = failure.message
            log_event(logging.ERROR, events.MESSAGE_FAILED, **fields, retry_in_s=None)
            about = (str(message.message_id), message.aggregate_type, message.event, message.store_id)
            report_failure(MessageFailure(*about, failure.answer.code, failure.tries))
    return new


def _parameters(failures: Sequence[Failure], owner: int) -> dict[str, Any]:
    return {
        **identities([failure.message for failure in failures]),
        "codes": [failure.answer.code[:LONGEST_CODE] for failure in failures],
        "errors": [shown_message(str(failure.answer))[:LONGEST_ERROR] for failure in failures],
        "owner": owner,
    }


def _log_fields(failure: Failure) -> dict[str, Any]:
    message = failure.message
    return {
        "message_id": message.message_id,
        "aggregate_type": message.aggregate_type,
        "aggregate_id": message.aggregate_id,
        "event_name": message.event,
        "store_id": message.store_id,
        "code": failure.answer.code,
        "detail": failure.answer.detail,
    }
