"""Makes clients of AWS, and says what their errors mean. Alone in knowing boto3, which is imported with this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, overload

from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.conf import settings
from salon_jobs.core.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_sns.client import SNSClient
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


# What a call of a client raises. Its own kinds are not enough: foreign XML from a proxy is a KeyError of its parser.
ERRORS: Final = Exception

_NOT_AUTHORIZED: Final = frozenset({
    "AuthorizationError", "AccessDenied", "AuthFailure", "InvalidClientTokenId", "UnrecognizedClient",
    "SignatureDoesNotMatch", "IncompleteSignature", "InvalidSecurity", "MissingAuthenticationToken", "ExpiredToken",
    "OptInRequired", "KMSAccessDenied", "KMSDisabled", "KMSInvalidState", "KMSNotFound", "KMSOptInRequired",
})  # fmt: skip
_THROTTLED: Final = frozenset({
    "Throttled", "Throttling", "KMSThrottling", "TooManyRequests", "RequestThrottled", "RequestLimitExceeded",
    "SlowDown", "PriorRequestNotComplete",
})  # fmt: skip
_ABSENT: Final = frozenset({"NotFound", "ResourceNotFound", "NonExistentQueue", "QueueDoesNotExist"})
_NEVER: Final = frozenset({
    "InvalidParameter", "InvalidParameterValue", "ParameterValueInvalid", "Validation", "ValidationError",
    "InvalidMessageContents", "BatchRequestTooLong", "MissingParameter",
})  # fmt: skip


@overload
def client(service: Literal["sns"], *, timeout_s: float, attempts: int) -> SNSClient: ...
@overload
def client(service: Literal["sqs"], *, timeout_s: float, attempts: int, region: str = "") -> SQSClient: ...
def client(service: Literal["sns", "sqs"], *, timeout_s: float, attempts: int, region: str = "") -> Any:
    """Make a client, which threads may share, with the keys, region and endpoint of the settings. No I/O.

    ``timeout_s`` holds for connecting, and again for each wait for an answer; ``attempts`` counts the first one. Raises
    ConfigurationError for a region, an endpoint or a profile of AWS that boto3 can not use.
    """
    given = settings.sns
    endpoint = given.endpoint if service == "sns" else given.sqs_endpoint or given.endpoint
    config = Config(
        connect_timeout=timeout_s, read_timeout=timeout_s, max_pool_connections=8 * given.concurrency,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )  # fmt: skip
    try:
        # Its types know one call for each service, and their list is too long for a type checker.
        session: Any = Session(aws_access_key_id=given.access_key, aws_secret_access_key=given.secret_key)
        return session.client(service, region_name=region or given.region, endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"SALON_JOBS['SNS'] can not be used: {error}") from error


def verdict_of(error: Exception) -> PublishFailure:
    """Say what the error that a whole request ended with means for its messages."""
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
    """Say what an error code of AWS means, of a request with its HTTP status, or of one entry of a batch.

    Missing rights and an encryption key that can not be used are outages: an operator mends them, no message is to
    blame. Throttling is one as well: it costs no attempt, and the destination waits.
    """
    # SQS writes AWS.SimpleQueueService.NonExistentQueue, and both add Exception here and there.
    name = code.rpartition(".")[2].removesuffix("Exception")
    if name in _THROTTLED or status == 429:
        return PublishFailure(Verdict.OUTAGE, "SNS.THROTTLED", detail)
    if name in _ABSENT:
        return PublishFailure(Verdict.MISSING, "SNS.NO_TOPIC", detail)
    if name in _NOT_AUTHORIZED or status in (401, 403):
        return PublishFailure(Verdict.OUTAGE, "SNS.NOT_AUTHORIZED", detail)
    if name in _NEVER:
        return PublishFailure(Verdict.REFUSED, "SNS.REFUSED", detail)
    if status >= 500:
        return PublishFailure(Verdict.OUTAGE, "SNS.UNAVAILABLE", detail)
    return PublishFailure(Verdict.RETRY, "SNS.FAILED", detail)
