"""Comparison of what was acknowledged, what survived, what was done and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from rich.table import Table

from tests.chaos.failover.client import Acknowledged, names
from tests.chaos.failover.rig import STORES, Rig

# Effects outside the transaction that ends the job: at least once, when a run is interrupted.
_AT_LEAST_ONCE: Final = frozenset({"system", "outside", "held-system", "held-outside"})
_AT_MOST_ONCE: Final = frozenset({"once", "once-outside", "held-once"})
_LAST_COUNTS: Final = frozenset({"replace", "preserve"})
_UNENDED: Final = """
SELECT id, task, state, attempts, payload->>'marker' FROM salon_jobs_job
WHERE state <> 'cancelled' AND task LIKE 'failover-%' AND NOT (task = 'failover-second' AND state <> 'failed')
"""
_RESULTS: Final = "SELECT value->>'marker' FROM salon_jobs_job_result WHERE task = 'failover-kept'"
_MESSAGES: Final = """
SELECT aggregate_id, message_id::text, status FROM salon_jobs_message WHERE aggregate_id = ANY (%s) ORDER BY id
"""


@dataclass(slots=True)
class Verdict:
    """One scene's figures.

    ``acknowledged`` writes, those of them that are ``lost``, those that ``survived``, those written ``after`` the
    promotion; ``starts`` of handlers and their ``effects``; jobs ``undone``, ``doubled`` or ``repeated`` as documented;
    ``messages`` in the table, those ``unsent``, out of order, ``sent_again`` as documented, and ``sent_but_lost``;
    numbers of running jobs that were ``reused``; jobs that run ``once`` at most, and those of them that were
    ``cut_short`` and have failed; ticks ``missed``. Times in seconds, from the end of the failover; None: never, in the
    time there was.
    """

    acknowledged: int = 0
    lost: int = 0
    survived: int = 0
    after: int = 0
    starts: int = 0
    effects: int = 0
    undone: int = 0
    doubled: int = 0
    repeated: int = 0
    messages: int = 0
    unsent: int = 0
    disorder: int = 0
    sent_again: int = 0
    sent_but_lost: int = 0
    reused: int = 0
    once: int = 0
    cut_short: int = 0
    missed: int = 0
    requests_s: float | None = None
    jobs_s: float | None = None
    messages_s: float | None = None
    ready_s: float | None = None
    faults: list[str] = field(default_factory=list[str])


def examine(
    rig: Rig, verdict: Verdict, acknowledged: Iterable[Acknowledged], aggregates: Sequence[str], *, synchronous: bool
) -> None:
    """Compare, while nothing writes and no job is left. What survived is what the new primary knows to be asked."""
    with rig.connect() as connection:
        asked = connection.execute("SELECT marker, kind, key, action, server FROM failover_asked").fetchall()
        done = dict(connection.execute("SELECT marker, count(*) FROM failover_done GROUP BY 1").fetchall())
        rows = connection.execute(_UNENDED).fetchall()
        kept = {row[0] for row in connection.execute(_RESULTS).fetchall()}
        messages = connection.execute(_MESSAGES, [list(aggregates)]).fetchall()
        [(server,)] = connection.execute("SELECT inet_server_port()").fetchall()
    answered = list(acknowledged)
    survivors = {row[0] for row in asked}
    lost = [write for write in answered if write.marker not in survivors]
    verdict.acknowledged, verdict.lost, verdict.survived = len(answered), len(lost), len(survivors)
    verdict.after = sum(row[4] == server for row in asked)
    for write in lost:
        if synchronous or write.server == server:
            verdict.faults.append(f"lost: {write.kind} {write.marker}, acknowledged by {write.server}")
    runs = Counter(rig.runs())
    verdict.starts, verdict.effects = runs.total(), sum(done.values())
    cut_short = {row[4] for row in rows if row[2] == "failed" and "-once" in row[1]}
    _judge_jobs(verdict, [row for row in asked if row[1] not in _AT_MOST_ONCE], done, runs, server)
    for marker, kind, _, _, on in asked:
        if kind in _AT_MOST_ONCE:
            # Replication that loses transactions can lose the mark of a run that has begun.
            may_repeat = not synchronous and on != server
            effects = (runs if kind == "held-once" else done).get(marker, 0)
            _judge_once(verdict, kind, marker, runs[marker], effects, marker in cut_short, may_repeat=may_repeat)
    for marker, kind, _, action, _ in asked:
        if kind == "kept" and action == "inserted" and marker not in kept:
            verdict.undone += 1
            verdict.faults.append(f"no result is kept of {marker}")
    verdict.faults += [
        f"job {row[0]} {row[1]} is {row[2]} after {row[3]} attempts: {row[4]}"
        for row in rows
        if row[4] not in cut_short
    ]
    for marker, count in done.items():
        if marker.startswith(("cron/", "second/")) and count != 1:
            verdict.doubled += 1
            verdict.faults.append(f"{marker} was done {count} times")
    _judge_messages(verdict, messages, rig.stored(), server, aggregates)


def _judge_jobs(
    verdict: Verdict, asked: Sequence[Any], done: Mapping[str, int], runs: Mapping[str, int], server: int
) -> None:
    last: dict[tuple[str, str], str] = {}
    for marker, kind, key, _, _ in asked:
        if kind in _LAST_COUNTS and _number(marker) > _number(last.get((kind, key), "/0")):
            last[kind, key] = marker
    for marker, kind, key, action, on in asked:
        must = kind not in ("none", "second") and (kind not in _LAST_COUNTS or last[kind, key] == marker)
        must = must and not (kind == "dedupe" and action != "inserted")
        for name in _names(kind, marker):
            count = (runs if kind == "held-outside" else done).get(name, 0)
            where = "after the promotion" if on == server else "before it"
            if must and not count:
                verdict.undone += 1
                verdict.faults.append(f"never done: {kind} {name}, asked {where}")
            elif count > 1 and kind in _AT_LEAST_ONCE and on != server:
                verdict.repeated += 1
            elif count > 1:
                verdict.doubled += 1
                verdict.faults.append(f"done {count} times: {kind} {name}, asked {where}")


def _judge_once(
    verdict: Verdict, kind: str, marker: str, starts: int, effects: int, has_failed: bool, *, may_repeat: bool
) -> None:
    verdict.once += 1
    verdict.cut_short += has_failed
    if starts > 1 and may_repeat:
        verdict.repeated += 1
    elif starts > 1:
        verdict.doubled += 1
        verdict.faults.append(f"started {starts} times: {kind} {marker}")
    # A run outside a transaction may have had its effect before it was cut short.
    if (
        not (effects or has_failed)
        or (kind == "once" and effects and has_failed)
        or (kind != "held-once" and effects > 1)
    ):
        verdict.undone += 1
        verdict.faults.append(f"{kind} {marker} has failed: {has_failed}, effects: {effects}")


def _judge_messages(
    verdict: Verdict,
    messages: Sequence[Any],
    stored: Sequence[tuple[str, dict[str, str], dict[str, Any]]],
    server: int,
    aggregates: Sequence[str],
) -> None:
    arrived: dict[str, list[str]] = {}
    counts = Counter[str]()
    sent_by: dict[str, int] = {}
    for subject, headers, payload in stored:
        message_id = headers["Nats-Msg-Id"]
        counts[message_id] += 1
        sent_by[message_id] = payload["server"]
        if counts[message_id] == 1:
            arrived.setdefault(subject.partition(".")[2], []).append(message_id)
    known: dict[str, list[str]] = {}
    for aggregate, message_id, _ in messages:
        known.setdefault(aggregate, []).append(message_id)
    verdict.messages = len(messages)
    for aggregate in aggregates:
        expected = known.get(aggregate, [])
        places = {message_id: place for place, message_id in enumerate(expected)}
        found = [places[message_id] for message_id in arrived.get(aggregate, []) if message_id in places]
        if missing := len(expected) - len(found):
            verdict.unsent += missing
            verdict.faults.append(f"{aggregate}: {missing} of {len(expected)} messages were never sent")
        if wrong := sum(before > after for before, after in pairwise(found)):
            verdict.disorder += wrong
            verdict.faults.append(f"{aggregate}: {wrong} messages out of order")
    there = {message_id for ids in known.values() for message_id in ids}
    for message_id, count in counts.items():
        if message_id not in there:
            verdict.sent_but_lost += 1
            if sent_by[message_id] == server:
                verdict.faults.append(f"message {message_id}, written after the promotion, is not there")
        elif count > 1:
            verdict.sent_again += 1
            if sent_by[message_id] == server:
                verdict.faults.append(f"message {message_id}, written after the promotion, was sent {count} times")


def _names(kind: str, marker: str) -> list[str]:
    """Return the markers of all jobs that one write asked for."""
    return [*names(kind, marker), *(f"{marker}@{store}" for store in STORES if kind == "fan")]


def _number(marker: str) -> int:
    return int(marker.rpartition("/")[2])


def table(verdicts: Mapping[str, Verdict]) -> Table:
    """Return one row for each scene."""
    shown = Table(title="Failovers; seconds count from the moment the new primary can be reached")
    jobs = ("acked", "lost", "after", "starts", "effects", "undone", "twice", "again")
    messages = ("msgs", "unsent", "disorder", "resent", "sent+lost")
    others = ("reused", "once", "cut", "missed", "requests", "jobs", "messages", "/readyz", "faults")
    for title in ("scene", *jobs, *messages, *others):
        shown.add_column(title, justify="left" if title == "scene" else "right", no_wrap=True)
    for name, v in verdicts.items():
        of_jobs = (v.acknowledged, v.lost, v.after, v.starts, v.effects, v.undone, v.doubled, v.repeated)
        of_messages = (v.messages, v.unsent, v.disorder, v.sent_again, v.sent_but_lost)
        times = (v.requests_s, v.jobs_s, v.messages_s, v.ready_s)
        shown.add_row(
            name,
            *map(str, (*of_jobs, *of_messages, v.reused, v.once, v.cut_short, v.missed)),
            *("never" if seconds is None else f"{seconds:.1f}" for seconds in times),
            str(len(v.faults)),
            style="bold red" if v.faults else None,
        )
    return shown


def as_json(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Return the verdicts as JSON values."""
    return {name: asdict(verdict) for name, verdict in verdicts.items()}
