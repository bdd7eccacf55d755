"""AWS clients, the meaning of their errors, and requests to SNS. The only module that imports boto3."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from salon_jobs.brokers.aws.settings import settings
from salon_jobs.brokers.publisher import NOT_SENT, Answers, Meaning, PublishFailure, Verdict, find_meaning
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError, NotReady
from salon_jobs.core.events import log_event

if TYPE_CHECKING:
    from mypy_boto3_sns.client import SNSClient
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef
    from mypy_boto3_sqs.client import SQSClient


try:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )
except ImportError as missing:
    raise ConfigurationError("SNS and SQS need boto3: pip install 'salon-jobs[sns]'") from missing


# What a client's call may raise. The SDK's own errors are not enough: its parser raises KeyError for foreign XML from a
# proxy.
ERRORS: Final = Exception

# How long one request may take to connect, and again to wait for each answer.
TIMEOUT_S: Final = 5.0
_THROTTLED: Final = "SNS.THROTTLED"
# The first that lists an error applies. Missing permissions and an unusable encryption key are outages: an operator
# fixes them, and no message is to blame. So is throttling: it costs no attempt, and the destination waits. So is what
# no list knows.
_MEANINGS: Final = (
    Meaning(
        Verdict.OUTAGE,
        _THROTTLED,
        "Throttled Throttling KMSThrottling TooManyRequests RequestThrottled RequestLimitExceeded SlowDown "
        "PriorRequestNotComplete",
        (429,),
    ),
    Meaning(Verdict.MISSING, "SNS.NO_TOPIC", "NotFound ResourceNotFound NonExistentQueue QueueDoesNotExist"),
    Meaning(
        Verdict.OUTAGE,
        "SNS.NOT_AUTHORIZED",
        "AuthorizationError AccessDenied AuthFailure NotAuthorized InvalidClientTokenId InvalidAccessKeyId "
        "UnrecognizedClient SignatureDoesNotMatch InvalidSignature IncompleteSignature InvalidSecurity "
        "MissingAuthenticationToken ExpiredToken RequestExpired RequestTimeTooSkewed OptInRequired KMSAccessDenied "
        "KMSDisabled KMSInvalidKeyUsage KMSInvalidState KMSNotFound KMSOptInRequired",
        (401, 403),
    ),
    Meaning(
        Verdict.REFUSED,
        "SNS.REFUSED",
        "InvalidParameter InvalidParameterValue ParameterValueInvalid Validation ValidationError "
        "InvalidMessageContents BatchRequestTooLong MissingParameter",
    ),
    Meaning(
        Verdict.OUTAGE,
        "SNS.UNAVAILABLE",
        "InternalError InternalFailure InternalServerError ServiceUnavailable RequestTimeout",
        range(500, 1000),
    ),
    Meaning(Verdict.OUTAGE, "SNS.FAILED", statuses=range(500)),
)


@overload
def client(service: Literal["sns"], *, timeout_s: float, attempts: int) -> SNSClient: ...
@overload
def client(service: Literal["sqs"], *, timeout_s: float, attempts: int, region: str = "") -> SQSClient: ...
def client(service: Literal["sns", "sqs"], *, timeout_s: float, attempts: int, region: str = "") -> Any:
    """Create a client that threads may share, with the keys, region and endpoint of the settings. No I/O.

    ``timeout_s`` applies to connecting, and again to each wait for an answer; ``attempts`` includes the first one.
    Raises ConfigurationError for a region, endpoint or AWS profile that boto3 cannot use.
    """
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        max_pool_connections=64,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    try:
        # The stubs have one overload per service, and their list is too long for a type checker.
        key, secret = settings.access_key or (None, None)
        session: Any = Session(aws_access_key_id=key, aws_secret_access_key=secret)
        region = region or settings.region
        return session.client(service, region_name=region, endpoint_url=settings.endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"SALON_JOBS['SNS'] cannot be used: {error}") from error


def verdict_of(error: Exception) -> PublishFailure:
    """Return the answer for the messages of a request that an error ended."""
    match error:
        case ClientError(response=response):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = response.get("Error", {}).get("Code", "")
            return verdict_of_code(code, detail=str(error), status=status)
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return PublishFailure(Verdict.OUTAGE, "SNS.NOT_AUTHORIZED", str(error))
        case ParamValidationError():
            return PublishFailure(Verdict.REFUSED, "SNS.REFUSED", str(error))
        case _:
            return PublishFailure(Verdict.OUTAGE, "SNS.UNREACHABLE", f"{type(error).__name__}: {error}")


def verdict_of_code(code: str, *, detail: str, status: int = 400) -> PublishFailure:
    """Return the answer for an AWS error code: of a request, with its HTTP status, or of one entry of a batch."""
    # SQS writes AWS.SimpleQueueService.NonExistentQueue, and both services sometimes append Exception.
    return find_meaning(_MEANINGS, code.rpartition(".")[2].removesuffix("Exception"), status, detail)


@contextmanager
def require_answer(server: str) -> Generator[None]:
    """Raise NotReady, naming ``server``, for any error of a request in the block."""
    try:
        yield
    except ERRORS as error:
        raise NotReady(f"{server} does not answer: {error}") from error


# Minimum time between fetches for the same absent topic, or after a failed fetch.
AGAIN_S: Final = 60.0


class Topics:
    """Topic ARNs by name. Thread-safe; two threads fetching at once do no harm.

    ``read`` returns the ARNs of all topics and raises the SDK's errors. With ``refetch_s`` None, they are never
    refetched because of their age.
    """

    def __init__(self, read: Callable[[], Iterable[str]], *, refetch_s: float | None, clock: Callable[[], float]):
        self._read = read
        self._refetch_s = refetch_s
        self._clock = clock
        self._arns: dict[str, str] | None = None
        self._looked_for: dict[str, float] = {}
        self._due_at: float | None = float("-inf")
        self._failing = False

    def find(self, name: str) -> str | None:
        """Return a topic's ARN, or None if it does not exist or did not within the last minute.

        Raises the SDK's errors when SNS does not answer.
        """
        now = self._clock()
        arn = (self._arns or {}).get(name)
        if arn is None and now - self._looked_for.get(name, -AGAIN_S) >= AGAIN_S:
            arn = self._fetch().get(name)
            self._looked_for[name] = now
        return arn

    def discover(self) -> None:
        """Fetch the topics unless they are known. Log a failure."""
        if self._arns is None:
            self._refresh()

    def refresh_when_due(self) -> float | None:
        """Fetch the topics if due; return in how many seconds they are due next, or None for never.

        After a failure, the known topics stay and the next fetch is due in a minute. Only the first of several failures
        in a row is logged.
        """
        if self._due_at is not None and self._clock() >= self._due_at:
            self._refresh()
        return None if self._due_at is None else max(0.0, self._due_at - self._clock())

    def forget(self, name: str) -> None:
        """Forget a topic that SNS reports missing. It is looked for again in a minute."""
        self._looked_for[name] = self._clock()
        self._arns = {other: arn for other, arn in (self._arns or {}).items() if other != name}

    def _refresh(self) -> None:
        try:
            self._fetch()
        except ERRORS as error:
            self._due_at = self._clock() + AGAIN_S
            if not self._failing:
                log_event(logging.WARNING, events.TOPICS_NOT_READ, error=str(error))
            self._failing = True

    def _fetch(self) -> dict[str, str]:
        arns = {arn.rpartition(":")[2]: arn for arn in self._read()}
        self._arns, self._failing = arns, False
        self._due_at = None if self._refetch_s is None else self._clock() + self._refetch_s
        log_event(logging.INFO, events.TOPICS_READ, topics=len(arns))
        return arns


_PING_S: Final = 2.0  # for connecting, and again for the answer
_NO_ANSWER: Final = PublishFailure(Verdict.OUTAGE, "SNS.NO_ANSWER", "SNS left the message out of its answer")


class SnsConnection:
    """Clients for SNS, and the known topics. Thread-safe; created without I/O."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        # One retry, on a new connection: the server may have closed an idle one.
        self._client = client("sns", timeout_s=TIMEOUT_S, attempts=2)
        self._pinging = client("sns", timeout_s=_PING_S, attempts=1)
        refetch_s = None if settings.refetch_interval is None else settings.refetch_interval.total_seconds()
        self.topics = Topics(self._topic_arns, refetch_s=refetch_s, clock=clock)

    def find_topic(self, name: str) -> str | PublishFailure:
        """Return a topic's ARN, or why there is none."""
        try:
            arn = self.topics.find(name)
        except ERRORS as error:
            return verdict_of(error)
        if arn is None:
            return PublishFailure(Verdict.MISSING, "SNS.NO_TOPIC", f"there is no topic {name!r} in this account")
        return arn

    def publish_batch(
        self, arn: str, entries: Sequence[PublishBatchRequestEntryTypeDef], *, should_continue: Callable[[], bool]
    ) -> Answers:
        """Publish entries of different aggregates in one request; return an answer for each, in order."""
        batch = [{**entry, "Id": str(place)} for place, entry in enumerate(entries)]
        try:
            done = self._client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=batch)  # type: ignore[arg-type]
        except ERRORS as error:
            answer = verdict_of(error)
            if answer.verdict is not Verdict.REFUSED or len(entries) == 1:
                return [answer] * len(entries)
            # Find out which entries caused it; the others are not to blame.
            alone: Answers = []
            for entry in entries:
                sent = should_continue()
                alone += self.publish_batch(arn, [entry], should_continue=should_continue) if sent else [NOT_SENT]
            return alone
        published = {answer.get("Id") for answer in done.get("Successful", [])}
        failed = {answer["Id"]: answer for answer in done.get("Failed", [])}
        answers: Answers = []
        for place in map(str, range(len(entries))):
            if place in failed:
                code, detail = failed[place]["Code"], failed[place].get("Message", "")
                failure = verdict_of_code(code, detail=f"{code}: {detail}")
            elif place in published:
                answers.append(None)
                continue
            else:
                failure = _NO_ANSWER
            # What failed beside messages that the topic accepted is no outage of the topic, unless it asks to wait.
            if published and failure.verdict is Verdict.OUTAGE and failure.code != _THROTTLED:
                failure = replace(failure, verdict=Verdict.UNRESOLVABLE)
            answers.append(failure)
        return answers

    def ping(self) -> None:
        """Check readiness by asking SNS for its topics. Raises NotReady."""
        with require_answer("SNS"):
            self._pinging.list_topics()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._pinging.close()

    def _topic_arns(self) -> list[str]:
        pages = self._client.get_paginator("list_topics").paginate()
        return [topic.get("TopicArn", "") for page in pages for topic in page.get("Topics", [])]
