"""The sender that every broker's publisher uses, with requests to no broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishBroken, PublishFailure, Verdict
from salon_jobs.brokers.sender import Sender, SendingPublisher
from tests.brokers.messages import make
from tests.waiting import LIMIT_S

BAD = PublishFailure(Verdict.REFUSED, "TEST.BAD", "no")
GONE = PublishFailure(Verdict.OUTAGE, "TEST.GONE", "no")
Refuse = Callable[[list[str]], PublishFailure | None]


class Requests:
    """Requests in the order in which they began, of which some wait for others."""

    def __init__(
        self, refuse: Callable[[list[str]], PublishFailure | None] = lambda _: None, together: int = 1
    ) -> None:
        self.sent: list[list[str]] = []
        self._refuse, self._together = refuse, threading.Barrier(together, timeout=LIMIT_S)

    def __call__(self, messages: Sequence[OutgoingMessage]) -> Answers | PublishFailure:
        payloads = [each.payload for each in messages]
        self.sent.append(payloads)
        self._together.wait()
        return self._refuse(payloads) or [None for _ in messages]


def send(
    requests: Requests,
    *messages: OutgoingMessage,
    window: int = 1,
    should_continue: Callable[[], bool] = lambda: True,
    most: int = 1,
    most_bytes: int = 0,
) -> Answers:
    sender = Sender(messages, window=window, should_continue=should_continue)
    with ThreadPoolExecutor(window) as threads:
        size_of = (lambda message: len(message.payload)) if most_bytes else (lambda _: 0)
        sender.send_by(requests, threads, most=most, most_bytes=most_bytes, size_of=size_of)
    return sender.answers


def of(*aggregates: str) -> list[OutgoingMessage]:
    return [make("rn::x:::y", aggregate[:1], aggregate) for aggregate in aggregates]


def test_requests_fill_the_window() -> None:
    requests = Requests(together=3)
    assert send(requests, *of("a", "b", "c"), window=3) == [None] * 3


def test_batch_has_one_message_of_each_aggregate() -> None:
    requests = Requests()
    assert send(requests, *of("a1", "a2", "b1", "c1", "b2"), most=2) == [None] * 5
    assert requests.sent == [["a1", "b1"], ["c1", "a2"], ["b2"]]


def test_batch_has_room_for_its_bytes() -> None:
    requests = Requests()
    assert send(requests, *of("a" * 9, "b" * 5, "c" * 5, "d"), most=10, most_bytes=10) == [None] * 4
    assert [[*map(len, batch)] for batch in requests.sent] == [[9], [5, 5], [1]]


def test_message_larger_than_a_batch_is_sent_alone() -> None:
    requests = Requests()
    assert send(requests, *of("a" * 11, "b"), most=10, most_bytes=10) == [None] * 2
    assert [[*map(len, batch)] for batch in requests.sent] == [[11], [1]]


def test_outage_stops_all_aggregates() -> None:
    requests = Requests(lambda payloads: GONE if payloads == ["b1"] else None)
    assert send(requests, *of("a1", "b1", "b2", "c1", "a2")) == [None, GONE, NOT_SENT, GONE, GONE]
    assert requests.sent == [["a1"], ["b1"]]


@pytest.mark.parametrize("alone", [0, 1, 3])
def test_refused_batch_is_sent_one_by_one(alone: int) -> None:
    """As long as it may go on; only the message that is to blame is refused."""
    requests = Requests(lambda payloads: BAD if "b" in payloads else None)
    answers = send(requests, *of("a", "b", "c"), most=3, should_continue=lambda: len(requests.sent) <= alone)
    assert answers == [None, BAD, None][:alone] + [NOT_SENT] * (3 - alone)
    assert requests.sent == [["a", "b", "c"], *[["a"], ["b"], ["c"]][:alone]]


class Sending(SendingPublisher[Any]):
    """Publisher by requests of two messages, up to three at once."""

    service = "x"
    window = 3

    def __init__(self, requests: Callable[[Sequence[OutgoingMessage]], Answers | PublishFailure]) -> None:
        super().__init__()
        self._requests = requests

    def connect(self) -> Any:
        raise AssertionError("there is no broker")

    def check(self, message: OutgoingMessage) -> None:
        pass

    def send(self, sender: Sender, resource: str) -> None:
        with ThreadPoolExecutor(self.window) as threads:
            sender.send_by(self._requests, threads, most=2)


def test_error_of_request_keeps_answers() -> None:
    """What the broker accepts while another request fails is known, and nothing more is sent."""
    failed = threading.Event()

    def fail(payloads: list[str]) -> None:
        if "b1" in payloads:
            failed.set()
            raise ZeroDivisionError
        assert failed.wait(LIMIT_S)

    requests = Requests(fail)
    with pytest.raises(PublishBroken) as raised:
        Sending(requests).publish(of("a1", "z1", "b1", "b2", "c1", "a2"), should_continue=lambda: True)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert sorted(requests.sent) == [["a1", "z1"], ["b1", "c1"]]
    assert raised.value.answers == [None, None, NOT_SENT, NOT_SENT, NOT_SENT, NOT_SENT]


def test_error_of_message_sent_alone_keeps_answers() -> None:
    def fail(payloads: list[str]) -> PublishFailure | None:
        if payloads == ["b"]:
            raise ZeroDivisionError
        return BAD if len(payloads) > 1 else None

    with pytest.raises(PublishBroken) as raised:
        Sending(Requests(fail)).publish(of("a", "b"), should_continue=lambda: True)
    assert raised.value.answers == [None, NOT_SENT]
