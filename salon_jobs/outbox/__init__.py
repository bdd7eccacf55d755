"""Transactional outbox: emit in the business transaction, relay afterwards."""

from salon_jobs.outbox.emit import Draft as Draft
