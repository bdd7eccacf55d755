"""moto as a server: SNS topics that deliver to SQS queues, in memory."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from socket import create_connection
from typing import TYPE_CHECKING, Any, ClassVar, Final

import boto3
import botocore.session
from botocore.config import Config

from project.local.ports import free_port
from salon_jobs.brokers.aws.sns import SnsPublisher
from salon_jobs.brokers.aws.sqs import SqsSource
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core.destinations import parse_destination
from tests.servers.base import Broker
from tests.servers.forwarder import Forwarder
from tests.waiting import eventually

if TYPE_CHECKING:
    from mypy_boto3_sns.client import SNSClient
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

REGION: Final = "ap-northeast-1"
# Each session reads megabytes of JSON about AWS, most of the cost of a client. Here they are read once.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


class Moto:
    """moto in its own process, which keeps nothing when it ends, and clients of it. One serves all its users."""

    users: ClassVar[int] = 0
    shared: ClassVar[Moto]

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.servers.moto_server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers)
        made: Any = boto3.session.Session("test", "test", region_name=REGION)
        options = {"endpoint_url": f"http://127.0.0.1:{self.port}", "config": Config(max_pool_connections=1)}
        self.sns: SNSClient = made.client("sns", **options)
        self.sqs: SQSClient = made.client("sqs", **options)

    @classmethod
    def use(cls) -> Moto:
        if not cls.users:
            cls.shared = cls()
        cls.users += 1
        return cls.shared

    def leave(self) -> None:
        type(self).users -= 1
        if not self.users:
            self.sns.close()
            self.sqs.close()
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, "moto ended before it answered"
        try:
            with create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


class SnsBroker(Broker):
    """moto behind a forwarder, which a stop cuts.

    A topic delivers raw messages to two queues: ``<name>-seen`` for ``received``, and ``<name>`` for a source. AWS
    promises no order for standard topics; moto keeps it, which shows the order in which the publisher sends.
    """

    service: ClassVar[str] = "sns"

    def __init__(self) -> None:
        self._moto: Moto | None = None
        self._forwarder = Forwarder(0)
        self._seen: dict[str, list[Envelope]] = {}
        self.sns: SNSClient
        self.sqs: SQSClient

    def start(self) -> None:
        if self._moto is None:
            self._moto = Moto.use()
            self._forwarder.target_port = self._moto.port
            self.sns, self.sqs = self._moto.sns, self._moto.sqs
        self._forwarder.open()

    def stop(self) -> None:
        """Cut the connection to moto."""
        self._forwarder.cut()

    def close(self) -> None:
        self.stop()
        moto, self._moto = self._moto, None
        if moto is not None:
            moto.leave()

    def settings(self) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self._forwarder.port}"
        return {"SNS": {"ENDPOINT": address, "ACCESS_KEY": ("test", "test")}}

    def destination(self, name: str) -> str:
        """Create a topic, FIFO if its name says so, and its queues, before anything is published to it."""
        with self._forwarder.held:
            arn = self.topic(name)
            for queue in (_queue_of(name), _queue_of(name, seen=True)):
                self.subscribe(arn, queue, raw=True)
        return arn

    def topic(self, name: str) -> str:
        attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        return self.sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]

    def subscribe(self, arn: str, queue: str, *, raw: bool) -> str:
        """Create a queue to which a topic delivers; return its ARN."""
        fifo: Any = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        url = self.sqs.create_queue(QueueName=queue, Attributes=fifo)["QueueUrl"]
        got = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        endpoint = got["Attributes"]["QueueArn"]
        delivery = {"RawMessageDelivery": "true"} if raw else {}
        self.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=endpoint, Attributes=delivery)
        return endpoint

    def received(self, destination: str) -> list[Envelope]:
        """Return what arrived. A queue delivers each message once, so this object remembers them."""
        url = self._url(destination, seen=True)
        seen = self._seen.setdefault(destination, [])
        while messages := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=600
        ).get("Messages"):
            for message in messages:
                seen.append(_read(message))
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message.get("ReceiptHandle", ""))
        return list(seen)

    def publisher(self) -> SnsPublisher:
        return SnsPublisher()

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        name = _queue_of(destination.rpartition(":")[2])
        return SqsSource(parse_destination(f"rn::sqs:::{name}"), consumer=consumer)

    def spoil(self, destination: str, text: str) -> None:
        self.sqs.send_message(QueueUrl=self._url(destination), MessageBody=text)

    def _url(self, destination: str, *, seen: bool = False) -> str:
        return self.sqs.get_queue_url(QueueName=_queue_of(destination.rpartition(":")[2], seen=seen))["QueueUrl"]


class SnsFifoBroker(SnsBroker):
    """The same with FIFO topics, whose queues deliver one message of an aggregate at a time."""

    takes_no_aggregate: ClassVar[bool] = False
    drops_duplicates: ClassVar[bool] = True
    has_source: ClassVar[bool] = False

    def destination(self, name: str) -> str:
        return super().destination(f"{name}.fifo")


def _queue_of(topic: str, *, seen: bool = False) -> str:
    name = topic.removesuffix(".fifo")
    return name + ("-seen" if seen else "") + topic[len(name) :]


def _read(message: MessageTypeDef) -> Envelope:
    given = {name: value.get("StringValue", "") for name, value in message.get("MessageAttributes", {}).items()}
    assert given["Envelope"] == "1"
    texts = {"aggregate_id": "", "store_id": "", "replay_of": ""}
    texts |= {
        name.lower().replace("-", "_"): text for name, text in given.items() if name not in ("Envelope", "Headers")
    }
    return Envelope(payload=message.get("Body", ""), headers=json.loads(given.get("Headers", "{}")), **texts)
