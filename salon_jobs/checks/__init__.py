"""Registers system checks on import: each says what is wrong and what mends it."""

from salon_jobs.checks.catalogue import check_catalogue
from salon_jobs.checks.consumers import check_consumers
from salon_jobs.checks.isolation import check_isolation
from salon_jobs.checks.producer import check_producer, check_producer_of_views
from salon_jobs.checks.publishers import check_publishers
from salon_jobs.checks.requests import check_requests
from salon_jobs.checks.settings import check_settings

__all__ = [
    "check_catalogue",
    "check_consumers",
    "check_isolation",
    "check_producer",
    "check_producer_of_views",
    "check_publishers",
    "check_requests",
    "check_settings",
]
