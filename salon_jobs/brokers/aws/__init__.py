"""Amazon SNS and SQS."""

from typing import Final

from salon_jobs.brokers.broker import Broker

TOPIC_DENIED: Final = "SNS.TOPIC_DENIED"
EVENT_SKIPPED: Final = "SNS.EVENT_SKIPPED"

broker = Broker(
    folder=__name__,
    section="SNS",
    settings="settings.SnsSettings",
    publishers={"sns": "sns.SnsPublisher"},
    sources={"sqs": "sqs.SqsSource"},
    most_per_s=3000,
    trace_names={"sns": "aws_sns", "sqs": "aws_sqs"},
    filter_codes=(TOPIC_DENIED, EVENT_SKIPPED),
)
