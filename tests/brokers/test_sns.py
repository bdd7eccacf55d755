"""Holds what is SNS's own, and SQS's: batches, FIFO topics, discovery, filters, answers for single entries.

Moto answers for a message that is too large as SNS does for any that it fails. What it cannot be made to answer is put
into its real answers by the events of boto3: throttling, missing rights, failures of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from queue import Queue
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from botocore.awsrequest import AWSResponse
from pytest_django.fixtures import Settings

from salon_jobs.brokers.aws.client import verdict_of_code
from salon_jobs.brokers.aws.sns import MOST_BYTES, SnsPublisher, attributes_of, size_of
from salon_jobs.brokers.aws.sqs import SqsSource
from salon_jobs.brokers.publisher import NOT_SENT, OutgoingMessage, Verdict
from salon_jobs.brokers.registry import checker_for
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid, NotReady
from tests.brokers.messages import draft, make, publish, results
from tests.servers.sns import SnsBroker

pytestmark = pytest.mark.parametrize("running", ["sns"], indirect=True)
DAY_S = 86_400.0
NOW, LONG = timedelta(0), timedelta(minutes=1)


class Clock:
    """Is a clock that the test moves. Whoever waits by it says how long, and waits until the test goes on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waits: Queue[float] = Queue()
        self._over = Semaphore(0)

    def __call__(self) -> float:
        return self.now_s

    def wait(self, closing: Event, seconds: float) -> bool:
        self.waits.put(seconds)
        self._over.acquire()
        return closing.is_set()

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds
        self._over.release()


class Requests:
    """Records the requests that a publisher sends, and answers for SNS when the test says so."""

    def __init__(self, publisher: SnsPublisher) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.lists = 0
        self.refuse: Callable[[list[dict[str, Any]]], str | None] = lambda entries: None
        self.fail: dict[str, str] = {}  # payload → error code
        events = publisher.client.get()._client.meta.events
        events.register("provide-client-params.sns.PublishBatch", self._record)
        events.register("provide-client-params.sns.ListTopics", self._count)
        events.register("before-call.sns.PublishBatch", self._answer)
        events.register("after-call.sns.PublishBatch", self._alter)

    def _count(self, **_: object) -> None:
        self.lists += 1

    def _record(self, params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        context["entries"] = params["PublishBatchRequestEntries"]
        self.batches.append(params["PublishBatchRequestEntries"])

    def _answer(self, context: dict[str, Any], **_: object) -> Any:
        code = self.refuse(context["entries"])
        if code is None:
            return None
        parsed = {"Error": {"Code": code, "Message": "said by the test"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        return SimpleNamespace(status_code=400), parsed

    def _alter(self, parsed: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        for entry in context["entries"]:
            if code := self.fail.get(entry["Message"]):
                parsed["Successful"] = [each for each in parsed["Successful"] if each["Id"] != entry["Id"]]
                parsed.setdefault("Failed", []).append({"Id": entry["Id"], "Code": code, "SenderFault": False})

    @property
    def sent(self) -> list[str]:
        """Return the payloads that were sent, in their order."""
        return [entry["Message"] for batch in self.batches for entry in batch]


@pytest.fixture
def moto(broker: SnsBroker) -> SnsBroker:
    return broker


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def publisher(broker: SnsBroker, clock: Clock) -> Iterator[SnsPublisher]:
    """Open a publisher with the clock of the test."""
    publisher = SnsPublisher(clock=clock)
    publisher.open()
    yield publisher
    publisher.close()


@pytest.fixture
def requests(publisher: SnsPublisher) -> Requests:
    return Requests(publisher)


@pytest.fixture
def name() -> str:
    return f"orders-{uuid4().hex[:12]}"


@pytest.fixture
def topic(moto: SnsBroker, name: str) -> str:
    """Create a standard topic with its queues."""
    return moto.destination(name)


def codes(publisher: SnsPublisher, *messages: OutgoingMessage) -> list[str]:
    return [result[1] if result else "" for result in results(publisher, *messages)]


def test_a_request_holds_ten_messages_and_256_kib_at_most(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str
) -> None:
    small = [make(topic, str(n), f'"{n}"') for n in range(25)]
    assert publish(publisher, *small) == [None] * 25
    assert [len(batch) for batch in requests.batches] == [10, 10, 5]

    requests.batches.clear()
    # Characters of three bytes: counted in characters, ten of them would fit.
    half = "髪" * 12_500
    large = [make(topic, str(n), f'"{half}"', headers=f'{{"Tenant": "{half}"}}') for n in range(7)]
    assert publish(publisher, *large) == [None] * 7
    assert [len(batch) for batch in requests.batches] == [3, 3, 1]
    assert all(sum(map(_aws_bytes, batch)) <= MOST_BYTES for batch in requests.batches)
    assert len(moto.received(topic)) == 32


def _aws_bytes(entry: dict[str, Any]) -> int:
    texts = [entry["Message"]]
    for name, value in entry["MessageAttributes"].items():
        texts += name, value["DataType"], value["StringValue"]
    return len("".join(texts).encode())


def test_the_largest_message_that_is_accepted_can_be_sent_with_all_that_is_added(
    publisher: SnsPublisher, topic: str
) -> None:
    bare = draft(topic, payload="")
    room = MOST_BYTES - size_of("", attributes_of(bare))
    fits = bare._replace(payload='"' + "x" * (room - 2) + '"')
    publisher.check(fits)
    assert publish(publisher, fits) == [None]
    with pytest.raises(MessageInvalid, match="payload: the message has 262,145 bytes with its attributes"):
        publisher.check(fits._replace(payload=fits.payload + " "))


def test_no_message_has_more_attributes_than_raw_delivery_to_sqs_takes(topic: str) -> None:
    full = draft(topic, headers=json.dumps({f"h{n}": "x" for n in range(50)}))
    assert len(attributes_of(full)) <= 10
    assert "" not in attributes_of(make(topic, "", event="")).values()


@pytest.mark.parametrize(("code", "verdict"), [("InternalError", Verdict.RETRY), ("InvalidParameter", Verdict.REFUSED)])
def test_an_entry_that_fails_holds_its_aggregate_alone(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str, code: str, verdict: Verdict
) -> None:
    requests.fail = {'"a1"': code}
    messages = [make(topic, group, f'"{group}{n}"') for n in range(3) for group in "ab"]
    assert publish(publisher, *messages) == [None, None, verdict, None, Verdict.NOT_SENT, None]
    assert '"a2"' not in requests.sent
    assert [one.payload for one in moto.received(topic) if one.aggregate_id == "b"] == ['"b0"', '"b1"', '"b2"']


def test_an_entry_without_an_answer_is_tried_again(publisher: SnsPublisher, requests: Requests, topic: str) -> None:
    def forget(parsed: dict[str, Any], **_: object) -> None:
        parsed["Successful"] = parsed["Successful"][1:]

    publisher.client.get()._client.meta.events.register("after-call.sns.PublishBatch", forget)
    assert codes(publisher, make(topic, "a"), make(topic, "b")) == ["SNS.NO_ANSWER", ""]


@pytest.mark.parametrize("whole", [True, False], ids=["the whole request", "one entry"])
def test_throttling_costs_no_attempt_and_nothing_more_is_sent(
    publisher: SnsPublisher, requests: Requests, topic: str, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr("salon_jobs.brokers.aws.sns._CONCURRENCY", 1)
    if whole:
        requests.refuse = lambda entries: "ThrottledException"
    else:
        requests.fail = {'"3"': "Throttled"}
    answers = results(publisher, *(make(topic, str(n), f'"{n}"') for n in range(15)))
    throttled = (Verdict.OUTAGE, "SNS.THROTTLED")
    assert len(requests.batches) == 1
    assert answers == [throttled if whole or n == 3 or n >= 10 else None for n in range(15)]


def test_a_request_that_is_refused_blames_the_guilty_alone(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str
) -> None:
    requests.refuse = lambda entries: "InvalidParameter" if '"bad"' in [e["Message"] for e in entries] else None
    messages = (make(topic, "a"), make(topic, "b", '"bad"'), make(topic, "b"), make(topic, "c"))
    assert publish(publisher, *messages) == [None, Verdict.REFUSED, Verdict.NOT_SENT, None]
    assert len(moto.received(topic)) == 2


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AuthorizationErrorException", 403, "SNS.NOT_AUTHORIZED"),
        ("InvalidClientTokenId", 403, "SNS.NOT_AUTHORIZED"),
        ("KMSDisabledException", 400, "SNS.NOT_AUTHORIZED"),
        ("KMSThrottling", 400, "SNS.THROTTLED"),
        ("Anything", 429, "SNS.THROTTLED"),
        ("InternalFailure", 500, "SNS.UNAVAILABLE"),
        ("", 503, "SNS.UNAVAILABLE"),
        ("NotFound", 404, "SNS.NO_TOPIC"),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, "SNS.NO_TOPIC"),
        ("InvalidParameterValueException", 400, "SNS.REFUSED"),
        ("BatchRequestTooLong", 400, "SNS.REFUSED"),
        ("SomethingNew", 400, "SNS.FAILED"),
    ],
)
def test_what_an_error_code_means(running: SnsBroker, code: str, status: int, expected: str) -> None:
    answer = verdict_of_code(code, detail="", status=status)
    assert answer.code == expected
    outages = ("SNS.NOT_AUTHORIZED", "SNS.THROTTLED", "SNS.UNAVAILABLE")
    assert (answer.verdict is Verdict.OUTAGE) == (expected in outages)


def test_without_credentials_it_is_an_outage(
    configure: Callable[..., None], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(ACCESS_KEY=None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    with closing(SnsPublisher()) as publisher:
        assert results(publisher, make(topic)) == [(Verdict.OUTAGE, "SNS.NOT_AUTHORIZED")]


@pytest.mark.parametrize("wrong", [{"ENDPOINT": "http://[::1"}, {"REGION": "ap-northeast-"}])
def test_what_boto3_can_not_use_is_told_when_the_publisher_opens(
    configure: Callable[..., None], wrong: dict[str, str]
) -> None:
    configure(**wrong)
    with pytest.raises(ConfigurationError, match=r"SALON_JOBS\['SNS'\] cannot be used"):
        SnsPublisher().open()


@pytest.mark.parametrize("body", [b"<html>Welcome to the hotel</html>", b"{}", b""])
def test_an_answer_that_sns_never_gave_counts_for_nothing(publisher: SnsPublisher, topic: str, body: bytes) -> None:
    assert publish(publisher, make(topic)) == [None]
    events: Any = publisher.client.get()._client.meta.events
    nothing: Any = {}
    events.register("before-send.sns", lambda request, **_: AWSResponse(request.url, 200, nothing, _Body(body)))
    assert codes(publisher, make(topic))[0] in ("SNS.UNREACHABLE", "SNS.NO_ANSWER")


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self._body


def test_a_fifo_topic_keeps_the_order_of_a_group_and_drops_what_comes_again(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, name: str
) -> None:
    topic = moto.destination(f"{name}.fifo")
    messages = [make(topic, group, f'"{group}{n}"') for n in range(4) for group in "abc"]
    assert publish(publisher, *messages) == [None] * 12
    assert publish(publisher, messages[0], messages[4]) == [None, None]  # after a crash between publish and mark

    for batch in requests.batches:
        groups = [entry["MessageGroupId"] for entry in batch]
        assert len(groups) == len(set(groups)), "the one could fail and the other be in"
    arrived = moto.received(topic)
    for group in "abc":
        assert [one.payload for one in arrived if one.aggregate_id == group] == [f'"{group}{n}"' for n in range(4)]


def test_a_standard_topic_gets_the_group_of_each_aggregate_that_can_be_one(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str
) -> None:
    aggregates = ["order-7", "", "Hanako Satō", "x" * 129]
    assert publish(publisher, *(make(topic, aggregate) for aggregate in aggregates)) == [None] * 4
    sent = {
        entry["MessageAttributes"].get("Aggregate-Id", {}).get("StringValue", ""): entry.get("MessageGroupId")
        for batch in requests.batches
        for entry in batch
    }
    assert sent == {"order-7": "order-7", "": None, "Hanako Satō": None, "x" * 129: None}
    assert not any("MessageDeduplicationId" in entry for batch in requests.batches for entry in batch)
    assert len(moto.received(topic)) == 4


@pytest.mark.parametrize("throughput", [5000, {"*": None}])
def test_a_rate_that_sns_does_not_accept_is_refused_without_a_section_for_it(
    moto: SnsBroker, settings: Settings, throughput: object
) -> None:
    settings.SALON_JOBS = {"OUTBOX": {"PRODUCER": "salon", "THROUGHPUT": throughput}}
    with pytest.raises(
        ConfigurationError, match=r"\['THROUGHPUT'\] is .*, but a destination of 'sns' accepts at most 3000 per second"
    ):
        checker_for("sns")


@pytest.mark.parametrize(
    ("destination", "wrong", "message"),
    [
        ("rn::sns:::a.fifo", {"aggregate_id": ""}, "aggregate_id '' cannot be the message group"),
        ("rn::sns:::a.fifo", {"aggregate_id": "x" * 129}, "aggregate_id 'x.* 1 to 128 letters"),
        ("rn::sns:::a.fifo", {"aggregate_id": "a b"}, "aggregate_id 'a b'"),
        ("rn::sns:::a.fifo", {"aggregate_id": "é"}, "aggregate_id 'é'"),
        ("rn::sns:::a/b", {}, "aggregate_type 'rn::sns:::a/b' is not the name of an SNS topic"),
        ("rn::sns:::a", {"aggregate_id": "a\x01"}, r"aggregate_id holds the character U\+0001"),
        ("rn::sns:::a", {"event": "\ud800"}, r"event holds the character U\+D800"),
        ("rn::sns:::a", {"payload": '"\uffff"'}, r"payload holds the character U\+FFFF"),
        ("rn::sns:::a", {"headers": '{"a": "' + "x" * MOST_BYTES + '"}'}, "payload: the message has .* bytes"),
    ],
)
def test_what_sns_would_refuse_is_refused_when_it_is_written(
    configure: Callable[..., None], destination: str, wrong: dict[str, str], message: str
) -> None:
    fine = {"aggregate_id": "a", "event": "e"}
    SnsPublisher().check(draft("rn::sns:::a.fifo"))
    SnsPublisher().check(draft("rn::sns:::a", ""))
    with pytest.raises(MessageInvalid, match=message):
        SnsPublisher().check(draft(destination, **{**fine, **wrong}))


def test_a_topic_is_found_by_its_name_among_more_than_a_page_of_them(
    moto: SnsBroker, configure: Callable[..., None], name: str
) -> None:
    for n in range(105):
        moto.topic(f"{name}-{n:03}")
    with closing(SnsPublisher()) as publisher:
        publisher.open()
        requests = Requests(publisher)
        for elsewhere in (f"arn:aws:sns:us-east-1:999999999999:{name}-104", f"rn::sns:::{name}-000"):
            assert publish(publisher, make(elsewhere)) == [None]
        assert requests.lists == 0, "both were discovered at the start"


def test_topics_are_discovered_once_however_many_destinations_open(publisher: SnsPublisher, requests: Requests) -> None:
    publisher.open()
    publisher.open()
    assert requests.lists == 0


@pytest.fixture
def started(publisher: SnsPublisher, clock: Clock) -> Iterator[SnsPublisher]:
    """Start the thread that reads the topics; its waits end when the test says so."""
    publisher._wait = clock.wait
    publisher.start()
    yield publisher
    publisher._closing.set()
    clock.go_on(0)


def test_topics_are_read_again_each_day_without_a_message(
    started: SnsPublisher, requests: Requests, topic: str, clock: Clock
) -> None:
    assert clock.waits.get(timeout=10) == DAY_S
    before = requests.lists
    clock.go_on(DAY_S - 1)
    assert clock.waits.get(timeout=10) == 1
    assert requests.lists == before
    clock.go_on(1)
    assert clock.waits.get(timeout=10) == DAY_S
    read = requests.lists
    assert read > before
    assert publish(started, make(topic)) == [None]  # created after the start
    assert requests.lists == read


def _ends(publisher: SnsPublisher) -> bool:
    reader = publisher._reader
    assert reader is not None
    reader.join(10)
    return not reader.is_alive()


@pytest.mark.parametrize("interval", [86400, None])
def test_topics_that_can_not_be_read_are_tried_again_each_minute_and_those_known_stay(
    configure: Callable[..., None], topic: str, clock: Clock, caplog: pytest.LogCaptureFixture, interval: int | None
) -> None:
    configure(REFETCH_INTERVAL=interval)
    publisher = SnsPublisher(clock=clock, wait=clock.wait)
    events = publisher.client.get()._client.meta.events
    refused = True

    def refuse(**_: object) -> Any:
        error = {"Code": "AuthorizationError", "Message": "no right to list"}
        answer = SimpleNamespace(status_code=403), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}}
        return answer if refused else None

    events.register("before-call.sns.ListTopics", refuse)
    with caplog.at_level(logging.INFO, "salon_jobs"):
        publisher.start()
        assert clock.waits.get(timeout=10) == 60
        clock.go_on(60)
        assert clock.waits.get(timeout=10) == 60
        assert caplog.text.count("topics_not_read") == 1, "the first of several in a row"
        assert codes(publisher, make(topic)) == ["SNS.NOT_AUTHORIZED"]
        refused = False
        clock.go_on(60)
        if interval:
            assert clock.waits.get(timeout=10) == DAY_S
            refused = True
            clock.go_on(DAY_S)
            assert clock.waits.get(timeout=10) == 60
            assert caplog.text.count("topics_not_read") == 2
            assert publish(publisher, make(topic)) == [None]
            assert codes(publisher, make("rn::sns:::never-seen")) == ["SNS.NOT_AUTHORIZED"]
            publisher._closing.set()
            clock.go_on(0)
        else:
            assert _ends(publisher)
            assert publish(publisher, make(topic)) == [None]
    assert caplog.text.count("topics_read") == 1
    publisher.close()


def test_a_close_ends_the_thread_that_reads_the_topics(publisher: SnsPublisher) -> None:
    publisher.start()
    reader = publisher._reader
    assert reader is not None
    publisher.close()
    assert not reader.is_alive()


def test_a_topic_that_is_not_there_is_looked_for_once_a_minute(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, name: str, clock: Clock
) -> None:
    message = make(f"rn::sns:::{name}")
    before = requests.lists
    assert publish(publisher, message) == [Verdict.MISSING]
    looked = requests.lists - before
    assert looked > 0
    moto.topic(name)
    assert codes(publisher, message) == ["SNS.NO_TOPIC"]
    assert requests.lists - before == looked
    clock.now_s += 60
    assert publish(publisher, message) == [None]


def test_a_topic_that_was_deleted_is_missing_until_it_is_there_again(
    moto: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str, name: str, clock: Clock
) -> None:
    assert publish(publisher, make(topic)) == [None]
    moto.sns.delete_topic(TopicArn=topic)
    messages = [make(topic, "a"), make(topic, "a"), make(topic, "b")]
    expected = [Verdict.MISSING, Verdict.NOT_SENT, Verdict.MISSING]
    assert publish(publisher, *messages) == expected
    sent = len(requests.batches)
    assert publish(publisher, *messages) == expected
    assert len(requests.batches) == sent, "it was taken off the list"
    moto.topic(name)
    clock.now_s += 60
    assert publish(publisher, *messages) == [None] * 3


@pytest.mark.parametrize(
    ("lists", "code"),
    [
        ({"DENY_LIST": ["{name}"]}, "SNS.TOPIC_DENIED"),
        ({"DENY_LIST": ["arn:aws:sns:ap-northeast-1:123456789012:{name}"]}, "SNS.TOPIC_DENIED"),
        ({"ALLOW_LIST": ["another"]}, "SNS.TOPIC_DENIED"),
        ({"ALLOW_LIST": ["{name}"], "DENY_LIST": ["{name}"]}, "SNS.TOPIC_DENIED"),
        ({"ALLOW_LIST": ["{name}"]}, ""),
        ({"DENY_LIST": ["another"]}, ""),
    ],
)
def test_a_topic_that_is_denied_is_skipped(
    publisher: SnsPublisher,
    requests: Requests,
    configure: Callable[..., None],
    topic: str,
    name: str,
    lists: dict[str, list[str]],
    code: str,
) -> None:
    configure(**{key: [entry.format(name=name) for entry in entries] for key, entries in lists.items()})
    assert results(publisher, make(topic), make(topic)) == [(Verdict.SKIPPED, code) if code else None] * 2
    assert len(requests.sent) == (0 if code else 2)


def test_a_skipped_event_blocks_nothing(
    moto: SnsBroker, publisher: SnsPublisher, configure: Callable[..., None], topic: str
) -> None:
    configure(SKIP_EVENTS=["order.viewed"])
    events = ["order.created", "order.viewed", "order.paid"]
    assert codes(publisher, *(make(topic, event=event) for event in events)) == ["", "SNS.EVENT_SKIPPED", ""]
    assert [one.event for one in moto.received(topic)] == ["order.created", "order.paid"]


def test_an_absent_topic_on_the_ignore_list_warns_nobody(
    publisher: SnsPublisher, configure: Callable[..., None], name: str
) -> None:
    configure(IGNORE_LIST=[name])
    messages = [make(f"rn::sns:::{name}"), make(f"rn::sns:::{name}")]
    ignored, held = publisher.publish(messages, should_continue=lambda: True)
    assert ignored is not None
    assert (ignored.verdict, ignored.quiet) == (Verdict.MISSING, True)
    assert held == NOT_SENT
    [warned] = publisher.publish([make(f"rn::sns:::{name}-2")], should_continue=lambda: True)
    assert warned is not None
    assert not warned.quiet


def test_a_wrapped_notification_is_read_as_a_raw_one(moto: SnsBroker, publisher: SnsPublisher, name: str) -> None:
    topic = moto.topic(name)
    queue = moto.subscribe(topic, f"{name}-wrapped", raw=False)
    sent = make(topic, "42", '{"a":  "é"}', headers='{"Tenant": "髪"}', store_id=uuid4())
    assert publish(publisher, sent) == [None]

    source = SqsSource(parse_destination(queue), consumer="test")  # an ARN, with region and account
    [delivery] = source.receive(10, wait=NOW, visibility=LONG)
    read = delivery.envelope
    assert read is not None, delivery.fault
    assert (read.message_id, read.payload, dict(read.headers)) == (str(sent.message_id), sent.payload, {"Tenant": "髪"})
    assert (read.aggregate_id, read.store_id) == ("42", str(sent.store_id))
    source.acknowledge([delivery])
    source.close()


def test_answers_that_sqs_did_not_take_are_not_ready_and_those_no_longer_ours_are_left(
    moto: SnsBroker, publisher: SnsPublisher, topic: str
) -> None:
    assert publish(publisher, *(make(topic, str(n)) for n in range(12))) == [None] * 12
    source = SqsSource(parse_destination(f"rn::sqs:::{topic.rpartition(':')[2]}"), consumer="test")
    deliveries = source.receive(12, wait=NOW, visibility=LONG)
    assert len(deliveries) == 12
    theirs = True

    def fail(parsed: dict[str, Any], **_: object) -> None:
        code = "ReceiptHandleIsInvalid" if theirs else "InternalError"
        parsed["Failed"] = [{"Id": "1", "Code": code, "SenderFault": theirs}]

    source._answering.meta.events.register("after-call.sqs.*", fail)
    answers: list[Callable[[], None]] = [
        lambda: source.extend(deliveries, visibility=LONG),
        lambda: source.give_back(deliveries, after=LONG),
        lambda: source.acknowledge(deliveries),
    ]
    for answer in answers:
        theirs = True
        answer()
        theirs = False
        with pytest.raises(NotReady, match="rejected 2 answers: InternalError"):
            answer()
    source.close()


@pytest.mark.parametrize(
    ("body", "attributes", "fault"),
    [
        ('{"Type": "Notification", "Message": "{}", "MessageAttributes": [1]}', {}, "the attribute Event is missing"),
        ('{"Type": "Notification"}', {}, "the attribute Event is missing"),
        ("[" * 100_000, {}, "the attribute Event is missing"),
        ("[" * 100_000, {"Event": "e"}, "the body is not JSON"),
        ("no json", {"Event": "e"}, "the body is not JSON"),
        ("{}", {"Event": "e", "Envelope": "2"}, "Envelope is '2', not '1'"),
        ("{}", {"Event": "e", "Headers": "[]"}, "Headers is not a JSON object"),
        ("{}", {"Event": "e"}, ""),
    ],
)
def test_what_can_not_be_read_is_a_fault_and_stops_nothing(
    moto: SnsBroker, configure: Callable[..., None], name: str, body: str, attributes: dict[str, str], fault: str
) -> None:
    url = moto.sqs.create_queue(QueueName=name)["QueueUrl"]
    values: Any = {key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()}
    sent = moto.sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=values)
    source = SqsSource(parse_destination(f"rn::sqs:::{name}"), consumer="test")
    [delivery] = source.receive(1, wait=NOW, visibility=LONG)
    source.close()
    assert fault in delivery.fault
    assert body in delivery.raw
    if fault:
        assert delivery.envelope is None
    else:  # one of another program's: the id of the broker is its own
        assert delivery.envelope is not None
        assert delivery.envelope.message_id == sent["MessageId"]
