"""AWS clients, and the meaning of their errors. The only module that imports boto3."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from salon_jobs.brokers.aws.settings import sns_settings
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.brokers.sender import Meaning, find_meaning
from salon_jobs.core.errors import ConfigurationError, NotReady

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


# Errors that a client's call may raise. The SDK's own are not enough: its parser raises KeyError for foreign XML from a
# proxy.
ERRORS: Final = Exception

# How long one request may take to connect, and again to wait for each answer.
TIMEOUT_S: Final = 5.0
THROTTLED: Final = "SNS.THROTTLED"
# The first that lists an error applies. Missing permissions and an unusable encryption key are outages: an operator
# fixes them, and no message is to blame. So is throttling: it costs no attempt, and the destination waits. So are
# unlisted errors.
_MEANINGS: Final = (
    Meaning(
        Verdict.OUTAGE,
        THROTTLED,
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
        key, secret = sns_settings.access_key or (None, None)
        session: Any = Session(aws_access_key_id=key, aws_secret_access_key=secret)
        region = region or sns_settings.region
        return session.client(service, region_name=region, endpoint_url=sns_settings.endpoint, config=config)
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
