"""moto as a server: SNS topics that deliver to SQS queues, in memory."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
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

if TYPE_CHECKING:
    from mypy_boto3_sns.client import SNSClient
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

REGION: Final = "ap-northeast-1"
_START_S: Final = 30.0
# Each session reads megabytes of JSON about AWS, most of the cost of a client. Here they are read once.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


class SnsBroker(Broker):
    """moto in its own process, behind a forwarder. moto keeps nothing when it ends, so a stop only cuts the forwarder.

    A topic delivers raw messages to two queues: ``<name>-seen`` for ``received``, and ``<name>`` for a source. AWS
    promises no order for standard topics; moto keeps it, which shows the order in which the publisher sends.
    """

    service: ClassVar[str] = "sns"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._forwarder: Forwarder | None = None
        self._seen: dict[str, list[Envelope]] = {}
        self.sns: SNSClient
        self.sqs: SQSClient

    def start(self) -> None:
        if self._forwarder is None:
            port = free_port()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            _wait_for(port, self._process)
            self._forwarder = Forwarder(port)
            made: Any = boto3.session.Session("test", "test", region_name=REGION)
            config = Config(max_pool_connections=1)
            address = f"http://127.0.0.1:{port}"
            self.sns = made.client("sns", endpoint_url=address, config=config)
            self.sqs = made.client("sqs", endpoint_url=address, config=config)
        self._forwarder.open()

    def stop(self) -> None:
        """Cut the connection to moto."""
        if self._forwarder is not None:
            self._forwarder.cut()

    def close(self) -> None:
        self.stop()
        if self._process is not None:
            self.sns.close()
            self.sqs.close()
            self._process.kill()
            self._process.wait()
            self._process = self._forwarder = None

    def settings(self) -> dict[str, Any]:
        assert self._forwarder is not None
        address = f"http://127.0.0.1:{self._forwarder.port}"
        return {"SNS": {"ENDPOINT": address, "ACCESS_KEY": ("test", "test")}}

    def destination(self, name: str) -> str:
        """Create a topic, FIFO if its name says so, and its queues, before anything is published to it."""
        assert self._forwarder is not None
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
        name = destination.rpartition(":")[2]
        url = self.sqs.get_queue_url(QueueName=_queue_of(name, seen=True))["QueueUrl"]
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
        name = _queue_of(destination.rpartition(":")[2])
        url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        self.sqs.send_message(QueueUrl=url, MessageBody=text)


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
    return Envelope(
        message_id=given["Message-Id"],
        event=given["Event"],
        payload=message.get("Body", ""),
        producer=given["Producer"],
        aggregate_type=given["Aggregate-Type"],
        aggregate_id=given.get("Aggregate-Id", ""),
        store_id=given.get("Store-Id", ""),
        replay_of=given.get("Replay-Of", ""),
        headers=json.loads(given.get("Headers", "{}")),
    )


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    latest = time.monotonic() + _START_S
    while time.monotonic() < latest:
        assert process.poll() is None, "moto ended before it answered"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"moto did not answer within {_START_S:.0f} s")
