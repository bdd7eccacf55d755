"""Holds what is SNS's own, and SQS's: batches, FIFO topics, discovery, filters, answers for single entries.

Moto answers for a message that is too large as SNS does for any that it fails. What it cannot be made to answer is put
into its real answers by the events of boto3: throttling, missing rights, failures of its own.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from queue import Queue
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
from tests.servers.registry import on
from tests.servers.sns import SnsBroker
from tests.waiting import LIMIT_S, eventually

pytestmark = on("sns")
Configure = Callable[..., None]
DAY_S = 86_400.0
NOW, LONG = timedelta(0), timedelta(minutes=1)


class Clock:
    """Is a clock that the test moves. Whoever waits by it says how long, and waits until the test goes on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._waits: Queue[float] = Queue()
        self._over = threading.Semaphore(0)

    def __call__(self) -> float:
        return self.now_s

    def wait(self, closing: threading.Event, seconds: float) -> bool:
        self._waits.put(seconds)
        while not self._over.acquire(timeout=0.01):
            if closing.is_set():
                return True
        return False

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds
        self._over.release()

    def waited_for(self) -> float:
        """Return how long somebody waits who has just begun to."""
        return self._waits.get(timeout=LIMIT_S)


class Requests:
    """Records the requests that a publisher sends, and answers for SNS when the test says so."""

    def __init__(self, publisher: SnsPublisher) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.lists = 0
        self.refuse: Callable[[list[dict[str, Any]]], str | None] = lambda entries: None
        self.refuse_lists = False
        self.fail: dict[str, str] = {}  # payload → error code
        self.register = publisher.client.get()._client.meta.events.register
        self.register("provide-client-params.sns.PublishBatch", self._record)
        self.register("before-call.sns.ListTopics", self._list)
        self.register("before-call.sns.PublishBatch", self._answer)
        self.register("after-call.sns.PublishBatch", self._alter)

    def _record(self, params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        context["entries"] = params["PublishBatchRequestEntries"]
        self.batches.append(params["PublishBatchRequestEntries"])

    def _list(self, **_: object) -> Any:
        self.lists += 1
        return _error("AuthorizationError", 403) if self.refuse_lists else None

    def _answer(self, context: dict[str, Any], **_: object) -> Any:
        code = self.refuse(context["entries"])
        return None if code is None else _error(code, 400)

    def _alter(self, parsed: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        for entry in context["entries"]:
            if code := self.fail.get(entry["Message"]):
                parsed["Successful"] = [each for each in parsed["Successful"] if each["Id"] != entry["Id"]]
                parsed.setdefault("Failed", []).append({"Id": entry["Id"], "Code": code, "SenderFault": False})

    @property
    def sent(self) -> list[dict[str, Any]]:
        """Return the entries that were sent, in their order."""
        return [entry for batch in self.batches for entry in batch]


def _error(code: str, status: int) -> Any:
    error = {"Code": code, "Message": "said by the test"}
    return SimpleNamespace(status_code=status), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def publisher(broker: SnsBroker, clock: Clock) -> Iterator[SnsPublisher]:
    """Open a publisher with the clock of the test."""
    with closing(SnsPublisher(clock=clock, wait=clock.wait)) as publisher:
        publisher.open()
        yield publisher


@pytest.fixture
def requests(publisher: SnsPublisher) -> Requests:
    return Requests(publisher)


@pytest.fixture
def topic(broker: SnsBroker, name: str) -> str:
    """Create a standard topic with its queues."""
    return broker.destination(name)


def codes(publisher: SnsPublisher, *messages: OutgoingMessage) -> list[str]:
    return [result[1] if result else "" for result in results(publisher, *messages)]


def bytes_of(entry: dict[str, Any]) -> int:
    """Count the bytes of an entry as AWS does."""
    texts = [entry["Message"]]
    for name, value in entry["MessageAttributes"].items():
        texts += name, value["DataType"], value["StringValue"]
    return len("".join(texts).encode())


def test_request_of_ten_messages_and_256_kib(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str
) -> None:
    assert publish(publisher, *(make(topic, str(n), f'"{n}"') for n in range(25))) == [None] * 25
    assert [len(batch) for batch in requests.batches] == [10, 10, 5]
    requests.batches.clear()
    # Characters of three bytes: counted in characters, ten of them would fit.
    half = "髪" * 12_500
    large = [make(topic, str(n), f'"{half}"', headers=f'{{"Tenant": "{half}"}}') for n in range(7)]
    assert publish(publisher, *large) == [None] * 7
    assert [len(batch) for batch in requests.batches] == [3, 3, 1]
    assert all(sum(map(bytes_of, batch)) <= MOST_BYTES for batch in requests.batches)
    assert len(broker.received(topic)) == 32


def test_largest_message_can_be_sent(publisher: SnsPublisher, topic: str) -> None:
    bare = draft(topic, payload="")
    room = MOST_BYTES - size_of("", attributes_of(bare))
    fits = bare._replace(payload='"' + "x" * (room - 2) + '"')
    publisher.check(fits)
    assert publish(publisher, fits) == [None]
    with pytest.raises(MessageInvalid, match="payload: the message has 262,145 bytes with its attributes"):
        publisher.check(fits._replace(payload=fits.payload + " "))


def test_attributes_fit_raw_delivery_to_sqs(topic: str) -> None:
    full = draft(topic, headers=json.dumps({f"h{n}": "x" for n in range(50)}))
    assert len(attributes_of(full)) <= 10
    assert "" not in attributes_of(make(topic, "", event="")).values()


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("InternalError", Verdict.UNRESOLVABLE),
        ("SomethingNew", Verdict.UNRESOLVABLE),
        ("InvalidParameter", Verdict.REFUSED),
    ],
)
def test_failed_entry_holds_its_aggregate_alone(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str, code: str, verdict: Verdict
) -> None:
    requests.fail = {'"a1"': code}
    messages = [make(topic, group, f'"{group}{n}"') for n in range(3) for group in "ab"]
    assert publish(publisher, *messages) == [None, None, verdict, None, Verdict.NOT_SENT, None]
    assert '"a2"' not in [entry["Message"] for entry in requests.sent]
    assert [one.payload for one in broker.received(topic) if one.aggregate_id == "b"] == ['"b0"', '"b1"', '"b2"']


def test_entry_without_an_answer(publisher: SnsPublisher, requests: Requests, topic: str) -> None:
    def forget(parsed: dict[str, Any], **_: object) -> None:
        parsed["Successful"] = parsed["Successful"][1:]

    requests.register("after-call.sns.PublishBatch", forget)
    unanswered = (Verdict.UNRESOLVABLE, "SNS.NO_ANSWER")
    assert results(publisher, make(topic, "a"), make(topic, "b")) == [unanswered, None]
    assert results(publisher, make(topic, "a")) == [(Verdict.OUTAGE, "SNS.NO_ANSWER")]


@pytest.mark.parametrize(
    ("code", "expected"), [("InternalError", "SNS.UNAVAILABLE"), ("SomethingNew", "SNS.FAILED")], ids=str
)
@pytest.mark.parametrize("whole", [True, False], ids=["the whole request", "every entry"])
def test_error_that_blames_no_message(
    publisher: SnsPublisher, requests: Requests, topic: str, code: str, expected: str, whole: bool
) -> None:
    """Where nothing gets through, the destination is to blame: it waits, and the code is shown."""
    if whole:
        requests.refuse = lambda entries: code
    else:
        requests.fail = {"{}": code}
    answers = publisher.publish([make(topic, "a"), make(topic, "b")], should_continue=lambda: True)
    assert [(each.verdict, each.code) for each in answers if each] == [(Verdict.OUTAGE, expected)] * 2
    assert all(code in str(each) for each in answers)


@pytest.mark.parametrize("whole", [True, False], ids=["the whole request", "one entry"])
def test_throttling_costs_no_attempt(
    publisher: SnsPublisher, requests: Requests, topic: str, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Nothing more is sent then."""
    monkeypatch.setattr(SnsPublisher, "window", 1)
    if whole:
        requests.refuse = lambda entries: "ThrottledException"
    else:
        requests.fail = {'"3"': "Throttled"}
    answers = results(publisher, *(make(topic, str(n), f'"{n}"') for n in range(15)))
    throttled = (Verdict.OUTAGE, "SNS.THROTTLED")
    assert len(requests.batches) == 1
    assert answers == [throttled if whole or n == 3 or n >= 10 else None for n in range(15)]


def test_refused_request_blames_the_guilty_alone(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str
) -> None:
    requests.refuse = lambda entries: "InvalidParameter" if '"bad"' in [e["Message"] for e in entries] else None
    messages = (make(topic, "a"), make(topic, "b", '"bad"'), make(topic, "b"), make(topic, "c"))
    assert publish(publisher, *messages) == [None, Verdict.REFUSED, Verdict.NOT_SENT, None]
    assert len(broker.received(topic)) == 2


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
        ("", 404, "SNS.FAILED"),
        ("TooManyEntriesInBatchRequest", 400, "SNS.FAILED"),
        ("RequestExpired", 400, "SNS.NOT_AUTHORIZED"),
        ("RequestTimeTooSkewed", 400, "SNS.NOT_AUTHORIZED"),
        ("NotAuthorized", 400, "SNS.NOT_AUTHORIZED"),
        ("InvalidSignatureException", 400, "SNS.NOT_AUTHORIZED"),
        ("InvalidAccessKeyId", 400, "SNS.NOT_AUTHORIZED"),
        ("KMSInvalidKeyUsageException", 400, "SNS.NOT_AUTHORIZED"),
        ("InternalError", 400, "SNS.UNAVAILABLE"),
        ("ServiceUnavailable", 400, "SNS.UNAVAILABLE"),
    ],
)
def test_meaning_of_error_codes(running: SnsBroker, code: str, status: int, expected: str) -> None:
    answer = verdict_of_code(code, detail="", status=status)
    assert answer.code == expected
    outages = ("SNS.NOT_AUTHORIZED", "SNS.THROTTLED", "SNS.UNAVAILABLE", "SNS.FAILED")
    assert (answer.verdict is Verdict.OUTAGE) == (expected in outages)


def test_missing_credentials_are_an_outage(configure: Configure, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(ACCESS_KEY=None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    with closing(SnsPublisher()) as publisher:
        assert results(publisher, make(topic)) == [(Verdict.OUTAGE, "SNS.NOT_AUTHORIZED")]


@pytest.mark.parametrize("wrong", [{"ENDPOINT": "http://[::1"}, {"REGION": "ap-northeast-"}])
def test_unusable_settings_are_told_on_opening(configure: Configure, wrong: dict[str, str]) -> None:
    configure(**wrong)
    with pytest.raises(ConfigurationError, match=r"SALON_JOBS\['SNS'\] cannot be used"):
        SnsPublisher().open()


@pytest.mark.parametrize("body", [b"<html>Welcome to the hotel</html>", b"{}", b""])
def test_answer_that_sns_never_gave(publisher: SnsPublisher, requests: Requests, topic: str, body: bytes) -> None:
    assert publish(publisher, make(topic)) == [None]
    raw: Any = SimpleNamespace(stream=lambda *_, **__: iter([body]))
    nothing: Any = {}
    answer: Any = lambda request, **_: AWSResponse(request.url, 200, nothing, raw)  # noqa: E731
    requests.register("before-send.sns", answer)
    assert codes(publisher, make(topic))[0] in ("SNS.UNREACHABLE", "SNS.NO_ANSWER")


def test_fifo_batch_holds_each_group_once(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, name: str
) -> None:
    """Of two, the one could fail and the other be in."""
    topic = broker.destination(f"{name}.fifo")
    messages = [make(topic, group, f'"{group}{n}"') for n in range(4) for group in "abc"]
    assert publish(publisher, *messages) == [None] * 12
    groups = [[entry["MessageGroupId"] for entry in batch] for batch in requests.batches]
    assert [len(set(batch)) for batch in groups] == [len(batch) for batch in groups]
    arrived = broker.received(topic)
    for group in "abc":
        assert [one.payload for one in arrived if one.aggregate_id == group] == [f'"{group}{n}"' for n in range(4)]


def test_groups_of_a_standard_topic(broker: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str) -> None:
    """An aggregate whose ID can be a group is one."""
    groups = {"order-7": "order-7", "": None, "Hanako Satō": None, "x" * 129: None}
    assert publish(publisher, *(make(topic, aggregate) for aggregate in groups)) == [None] * 4
    assert groups == {
        entry["MessageAttributes"].get("Aggregate-Id", {}).get("StringValue", ""): entry.get("MessageGroupId")
        for entry in requests.sent
    }
    assert not any("MessageDeduplicationId" in entry for entry in requests.sent)
    assert len(broker.received(topic)) == 4


@pytest.mark.parametrize("throughput", [5000, {"*": None}])
def test_rate_above_that_of_sns_is_refused(running: SnsBroker, settings: Settings, throughput: object) -> None:
    """Also without a section for SNS."""
    settings.SALON_JOBS = {"OUTBOX": {"PRODUCER": "salon", "THROUGHPUT": throughput}}
    says = r"\['THROUGHPUT'\] is .*, but a destination of 'sns' accepts at most 3000 per second"
    with pytest.raises(ConfigurationError, match=says):
        checker_for("sns")


@pytest.mark.parametrize(
    ("topic", "wrong", "message"),
    [
        ("a.fifo", {"aggregate_id": ""}, "aggregate_id '' cannot be the message group"),
        ("a.fifo", {"aggregate_id": "x" * 129}, "aggregate_id 'x.* 1 to 128 letters"),
        ("a.fifo", {"aggregate_id": "a b"}, "aggregate_id 'a b'"),
        ("a.fifo", {"aggregate_id": "é"}, "aggregate_id 'é'"),
        ("a/b", {}, "aggregate_type 'rn::sns:::a/b' is not the name of an SNS topic"),
        ("a", {"aggregate_id": "a\x01"}, r"aggregate_id holds the character U\+0001"),
        ("a", {"event": "\ud800"}, r"event holds the character U\+D800"),
        ("a", {"payload": '"\uffff"'}, r"payload holds the character U\+FFFF"),
        ("a", {"headers": '{"a": "' + "x" * MOST_BYTES + '"}'}, "payload: the message has .* bytes"),
    ],
)
def test_check_refuses_what_sns_would(broker: SnsBroker, topic: str, wrong: dict[str, str], message: str) -> None:
    check = SnsPublisher().check
    check(draft("rn::sns:::a.fifo"))
    check(draft("rn::sns:::a", ""))
    with pytest.raises(MessageInvalid, match=message):
        check(draft(f"rn::sns:::{topic}", **{"aggregate_id": "a", "event": "e", **wrong}))


def test_topics_are_discovered_once(broker: SnsBroker, name: str, configure: Configure) -> None:
    """More than a page of them, however many destinations open."""
    for n in range(105):
        broker.topic(f"{name}-{n:03}")
    with closing(SnsPublisher()) as publisher:
        publisher.open()
        requests = Requests(publisher)
        publisher.open()
        for elsewhere in (f"arn:aws:sns:us-east-1:999999999999:{name}-104", f"rn::sns:::{name}-000"):
            assert publish(publisher, make(elsewhere)) == [None]
        assert requests.lists == 0


def test_topics_are_read_again_each_day(publisher: SnsPublisher, requests: Requests, topic: str, clock: Clock) -> None:
    publisher.start()
    assert clock.waited_for() == DAY_S
    before = requests.lists
    clock.go_on(DAY_S - 1)
    assert clock.waited_for() == 1
    assert requests.lists == before
    clock.go_on(1)
    assert clock.waited_for() == DAY_S
    read = requests.lists
    assert read > before
    assert publish(publisher, make(topic)) == [None]  # created after the start
    assert requests.lists == read


def is_reading() -> bool:
    """Return whether the thread runs that reads the topics."""
    return any(thread.name == "sns-topics" for thread in threading.enumerate())


@pytest.mark.parametrize("interval", [DAY_S, None])
def test_unread_topics_are_tried_each_minute(
    configure: Configure, topic: str, clock: Clock, caplog: pytest.LogCaptureFixture, interval: float | None
) -> None:
    """Those that are known stay."""
    configure(REFETCH_INTERVAL=interval)
    caplog.set_level(logging.INFO, "salon_jobs")
    with closing(SnsPublisher(clock=clock, wait=clock.wait)) as publisher:
        requests = Requests(publisher)
        requests.refuse_lists = True
        publisher.start()
        assert clock.waited_for() == 60
        clock.go_on(60)
        assert clock.waited_for() == 60
        assert caplog.text.count("topics_not_read") == 1, "the first of several in a row"
        assert codes(publisher, make(topic)) == ["SNS.NOT_AUTHORIZED"]
        requests.refuse_lists = False
        clock.go_on(60)
        if interval:
            assert clock.waited_for() == DAY_S
            requests.refuse_lists = True
            clock.go_on(DAY_S)
            assert clock.waited_for() == 60
            assert caplog.text.count("topics_not_read") == 2
            assert codes(publisher, make("rn::sns:::never-seen")) == ["SNS.NOT_AUTHORIZED"]
        else:
            eventually(is_reading, False)
        assert publish(publisher, make(topic)) == [None]
    assert caplog.text.count("topics_read") == 1


def test_close_ends_the_reading_of_topics(publisher: SnsPublisher) -> None:
    publisher.start()
    assert is_reading()
    publisher.close()
    eventually(is_reading, False)


def test_missing_topic_is_looked_for_once_a_minute(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, name: str, clock: Clock
) -> None:
    message = make(f"rn::sns:::{name}")
    before = requests.lists
    assert publish(publisher, message) == [Verdict.MISSING]
    looked = requests.lists - before
    assert looked > 0
    broker.topic(name)
    assert codes(publisher, message) == ["SNS.NO_TOPIC"]
    assert requests.lists - before == looked
    clock.now_s += 60
    assert publish(publisher, message) == [None]


def test_deleted_topic_is_missing_until_it_is_back(
    broker: SnsBroker, publisher: SnsPublisher, requests: Requests, topic: str, name: str, clock: Clock
) -> None:
    assert publish(publisher, make(topic)) == [None]
    broker.sns.delete_topic(TopicArn=topic)
    messages = [make(topic, "a"), make(topic, "a"), make(topic, "b")]
    expected = [Verdict.MISSING, Verdict.NOT_SENT, Verdict.MISSING]
    assert publish(publisher, *messages) == expected
    sent = len(requests.batches)
    assert publish(publisher, *messages) == expected
    assert len(requests.batches) == sent, "it was taken off the list"
    broker.topic(name)
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
def test_denied_topic_is_skipped(
    publisher: SnsPublisher,
    requests: Requests,
    configure: Configure,
    topic: str,
    name: str,
    lists: dict[str, list[str]],
    code: str,
) -> None:
    configure(**{key: [entry.format(name=name) for entry in entries] for key, entries in lists.items()})
    assert results(publisher, make(topic), make(topic)) == [(Verdict.SKIPPED, code) if code else None] * 2
    assert len(requests.sent) == (0 if code else 2)


def test_skipped_event_blocks_nothing(
    broker: SnsBroker, publisher: SnsPublisher, configure: Configure, topic: str
) -> None:
    configure(SKIP_EVENTS=["order.viewed"])
    events = ["order.created", "order.viewed", "order.paid"]
    assert codes(publisher, *(make(topic, event=event) for event in events)) == ["", "SNS.EVENT_SKIPPED", ""]
    assert [one.event for one in broker.received(topic)] == ["order.created", "order.paid"]


def test_ignored_topic_is_missing_quietly(publisher: SnsPublisher, configure: Configure, name: str) -> None:
    configure(IGNORE_LIST=[name])
    for topic, is_quiet in ((name, True), (f"{name}-2", False)):
        messages = [make(f"rn::sns:::{topic}"), make(f"rn::sns:::{topic}")]
        missing, held = publisher.publish(messages, should_continue=lambda: True)
        assert missing is not None
        assert (missing.verdict, missing.quiet) == (Verdict.MISSING, is_quiet)
        assert held == NOT_SENT


def test_wrapped_notification_is_read_as_a_raw_one(broker: SnsBroker, publisher: SnsPublisher, name: str) -> None:
    topic = broker.topic(name)
    queue = broker.subscribe(topic, f"{name}-wrapped", raw=False)
    sent = make(topic, "42", '{"a":  "é"}', headers='{"Tenant": "髪"}', store_id=uuid4())
    assert publish(publisher, sent) == [None]
    with closing(SqsSource(parse_destination(queue), consumer="test")) as source:  # an ARN, with region and account
        [delivery] = source.receive(10, wait=NOW, visibility=LONG)
        source.acknowledge([delivery])
    read = delivery.envelope
    assert read is not None, delivery.fault
    assert (read.message_id, read.payload, dict(read.headers)) == (str(sent.message_id), sent.payload, {"Tenant": "髪"})
    assert (read.aggregate_id, read.store_id) == ("42", str(sent.store_id))


def test_answers_that_sqs_did_not_take(broker: SnsBroker, publisher: SnsPublisher, topic: str, name: str) -> None:
    """They are not ready, and those that are no longer ours are left."""
    assert publish(publisher, *(make(topic, str(n)) for n in range(12))) == [None] * 12
    with closing(SqsSource(parse_destination(f"rn::sqs:::{name}"), consumer="test")) as source:
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
def test_messages_of_others(broker: SnsBroker, name: str, body: str, attributes: dict[str, str], fault: str) -> None:
    """What cannot be read is a fault; what can is known by the broker's own ID."""
    url = broker.sqs.create_queue(QueueName=name)["QueueUrl"]
    values: Any = {key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()}
    sent = broker.sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=values)
    with closing(SqsSource(parse_destination(f"rn::sqs:::{name}"), consumer="test")) as source:
        [delivery] = source.receive(1, wait=NOW, visibility=LONG)
    assert fault in delivery.fault
    assert body in delivery.raw
    if fault:
        assert delivery.envelope is None
    else:
        assert delivery.envelope is not None
        assert delivery.envelope.message_id == sent["MessageId"]
