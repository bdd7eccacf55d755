"""Azure Queue Storage."""

from salon_jobs.brokers.broker import Broker

broker = Broker(
    folder=__name__,
    section="AZURE",
    settings="settings.AzureSettings",
    publishers={"azurequeue": "storage_queue.AzureQueuePublisher"},
    sources={"azurequeue": "source.AzureQueueSource"},
    reads_bare_bodies=True,
)
