"""NATS JetStream."""

from salon_jobs.brokers.broker import Broker

broker = Broker(
    folder=__name__,
    section="NATS",
    settings="settings.NatsSettings",
    publishers={"nats": "jetstream.NatsPublisher"},
    sources={"nats": "source.NatsSource"},
    checks="settings.check",
)
