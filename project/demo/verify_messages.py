"""Comparison of messages with what was expected: by SQL as the superuser, and by what the brokers hold."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from project.demo.verify import Problem
from project.demo.worker_log import TaskFigures

_STATUSES: Final = """
    SELECT coalesce(store_id::text, 'the chain'), 'message ' || message_id || ' is ' || status || ', retried '
           || retry_count || ' times: ' || coalesce(last_error, '')
    FROM public.salon_jobs_message WHERE status <> 'published' OR retry_count > 0
"""
_REJECTED: Final = """
    SELECT 'the inbox', 'message ' || message_id || ' is ' || status || ': ' || reason
    FROM public.salon_jobs_inbox WHERE status <> 'enqueued'
"""
_ORDER: Final = """
    SELECT c.store_id::text, s.name, array_agg(c.id::text ORDER BY c.place)
    FROM demo_expected.confirmation AS c JOIN demo_before.store AS s ON s.id = c.store_id GROUP BY 1, 2
"""
Stored = tuple[str, dict[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFigures:
    """Counts of one event's messages on their way. The emitter reports the first two; ``waited``: for NATS.

    None: not applicable to this event.
    """

    committed: int
    rolled_back: int
    waited: int | None = None
    published: int
    in_stream: int | None = None
    taken_in: int
    jobs: int


_PUBLISHED: Final = "SELECT message_id FROM public.salon_jobs_message WHERE event = %(event)s AND status = 'published'"
_EMITTED: Final = "SELECT message_id FROM public.salon_jobs_message WHERE event = %(event)s"
_TAKEN_IN: Final = "SELECT message_id FROM public.salon_jobs_inbox WHERE consumer = %(consumer)s"
_UPLOADS: Final = """
    WITH said AS (
        SELECT store_id::text AS store, payload ->> 'task_id' AS task, payload ->> 'source_file_id' AS file
        FROM public.salon_jobs_message WHERE event = 'file.uploaded'
    ), task AS (
        SELECT t.store_id::text AS store, t.id::text AS task, f.id::text AS file FROM public.parse_task AS t
        FULL JOIN public.source_file AS f ON f.store_id = t.store_id AND f.id = t.source_file_id
    )
    SELECT coalesce(t.store, s.store), 'parse task ' || coalesce(t.task, s.task, 'of file ' || t.file) || ': '
           || count(s.task) || ' messages for ' || count(DISTINCT t.task) || ' rows'
    FROM task AS t FULL JOIN said AS s USING (store, task, file)
    GROUP BY t.store, s.store, t.task, s.task, t.file
    HAVING count(s.task) <> 1 OR count(DISTINCT t.task) <> 1
"""


class MessageVerifier:
    """Verifier of the confirmations, after everything is done.

    ``stored`` is the stream from its beginning: subject, headers, body.
    """

    def __init__(self, connection: psycopg.Connection[Any], stored: Sequence[Stored], jobs: TaskFigures) -> None:
        self._connection = connection
        self._stored = stored
        self._jobs = jobs

    def figures(self, *, confirmed: int, rolled_back: int, waited: int) -> MessageFigures:
        return MessageFigures(
            committed=confirmed,
            rolled_back=rolled_back,
            waited=waited,
            published=len(self._ids(_PUBLISHED)),
            in_stream=len(self._stored),
            taken_in=len(self._ids(_TAKEN_IN)),
            jobs=self._jobs.outcomes["succeeded"],
        )

    def problems(self) -> list[Problem]:
        """Return every difference from what was expected; an empty list means verified."""
        found = [Problem(store, what) for store, what in self._connection.execute(_STATUSES + "UNION ALL" + _REJECTED)]
        return [*found, *self._stores(), *self._same_ids(), *self._once()]

    def _stores(self) -> Iterator[Problem]:
        """Compare each store's messages with the confirmed reservations: order, completeness, duplicates."""
        arrived: defaultdict[str, list[str]] = defaultdict(list)
        for subject, _, body in self._stored:
            arrived[subject.partition(".")[2]].append(json.loads(body)["reservation_id"])
        expected = {store: (name, ids) for store, name, ids in self._connection.execute(_ORDER)}
        for store in sorted(expected.keys() | arrived.keys()):
            name, ids = expected.get(store, ("unknown store", []))
            for what in _differences(ids, arrived[store]):
                yield Problem(f"{name} ({store})", what)

    def _same_ids(self) -> Iterator[Problem]:
        """Compare the IDs that were emitted, that NATS holds, and that the inbox received."""
        emitted = self._ids(_EMITTED)
        for place, ids in {
            "NATS": Counter(headers["Nats-Msg-Id"] for _, headers, _ in self._stored),
            "the inbox": self._ids(_TAKEN_IN),
        }.items():
            yield from _strays(place, emitted, ids)

    def _once(self) -> Iterator[Problem]:
        jobs, succeeded = len(self._jobs.jobs), self._jobs.outcomes["succeeded"]
        if not len(self._stored) == jobs == succeeded:
            yield Problem("the worker", f"{len(self._stored)} messages became {jobs} jobs; {succeeded} succeeded")

    def _ids(self, query: LiteralString) -> Counter[str]:
        return _ids(self._connection, query, event="reservation.confirmed", consumer="confirmations")


class UploadVerifier:
    """Verifier of the uploads, after everything is done; ``left`` is the number of messages that Azure still holds."""

    def __init__(self, connection: psycopg.Connection[Any], jobs: TaskFigures, *, left: int) -> None:
        self._connection = connection
        self._jobs = jobs
        self._left = left

    def figures(self, *, uploaded: int, rolled_back: int) -> MessageFigures:
        return MessageFigures(
            committed=uploaded,
            rolled_back=rolled_back,
            published=len(self._ids(_PUBLISHED)),
            taken_in=len(self._ids(_TAKEN_IN)),
            jobs=self._jobs.outcomes["succeeded"],
        )

    def problems(self) -> list[Problem]:
        """Return every difference from what was expected; an empty list means verified."""
        return [Problem(store, what) for store, what in self._connection.execute(_UPLOADS)] + list(self._once())

    def _once(self) -> Iterator[Problem]:
        emitted, taken = self._ids(_EMITTED), self._ids(_TAKEN_IN)
        yield from _strays("the inbox", emitted, taken)
        if not len(emitted) == len(taken) == len(self._jobs.jobs) == self._jobs.outcomes["succeeded"]:
            yield Problem(
                "the worker",
                f"{len(emitted)} files became {len(taken)} messages and {len(self._jobs.jobs)} jobs; "
                f"{self._jobs.outcomes['succeeded']} succeeded",
            )
        if self._left:
            yield Problem("Azure", f"{self._left} messages are still there")

    def _ids(self, query: LiteralString) -> Counter[str]:
        return _ids(self._connection, query, event="file.uploaded", consumer="uploads")


def _ids(connection: psycopg.Connection[Any], query: LiteralString, **parameters: str) -> Counter[str]:
    return Counter(str(row[0]) for row in connection.execute(query, parameters).fetchall())


def _strays(place: str, emitted: Counter[str], ids: Counter[str]) -> Iterator[Problem]:
    """Compare the IDs that arrived at a place with those that were emitted."""
    for message_id in sorted((emitted - ids) | (ids - emitted)):
        yield Problem(place, f"message {message_id}: {ids[message_id]} times instead of {emitted[message_id]}")


def _differences(expected: Sequence[str], arrived: Sequence[str]) -> Iterator[str]:
    missing, extra = Counter(expected) - Counter(arrived), Counter(arrived) - Counter(expected)
    yield from (f"messages: reservation {id} is confirmed, but no message about it arrived" for id in missing)
    for id in extra:
        why = "arrived more than once" if id in expected else "was not confirmed, or rolled back, and arrived"
        yield f"messages: reservation {id} {why}"
    if not missing and not extra and list(expected) != list(arrived):
        first = next(place for place, pair in enumerate(zip(expected, arrived, strict=True)) if pair[0] != pair[1])
        yield f"messages: out of order from place {first + 1} on"
