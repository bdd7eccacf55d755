"""Lists the measures, in the order in which they are run."""

from __future__ import annotations

from typing import Final

from benchmarks.measure import Measure
from benchmarks.measures.answers import AWAIT
from benchmarks.measures.bulk import BULK
from benchmarks.measures.depth import DEPTH
from benchmarks.measures.django_tasks import DJANGO_TASKS
from benchmarks.measures.drain import DRAIN, DRAIN_MACHINE
from benchmarks.measures.enqueue import ENQUEUE
from benchmarks.measures.fairness import FAIRNESS
from benchmarks.measures.fan_out import FAN_OUT
from benchmarks.measures.latency import LATENCY
from benchmarks.measures.memory import MEMORY
from benchmarks.measures.pinned import PINNED
from benchmarks.measures.relay import CATCH_UP, POISON_RELAY, RELAY
from benchmarks.measures.rls_query import RLS_QUERY
from benchmarks.measures.setup import SETUP
from benchmarks.measures.start import START
from benchmarks.measures.steady import STEADY
from benchmarks.measures.store_drain import STORE_DRAIN
from benchmarks.measures.stream import EMIT_LATENCY, STREAM_RELAY
from benchmarks.measures.tenant_overhead import TENANT_OVERHEAD
from benchmarks.measures.waiting import WAITING, WAITING_IDLE
from benchmarks.measures.writers import EMIT_WRITERS, WRITERS

MEASURES: Final[tuple[Measure, ...]] = (
    DRAIN,
    DRAIN_MACHINE,
    STORE_DRAIN,
    DJANGO_TASKS,
    WAITING,
    WAITING_IDLE,
    LATENCY,
    AWAIT,
    *STEADY,
    ENQUEUE,
    WRITERS,
    BULK,
    FAN_OUT,
    DEPTH,
    PINNED,
    FAIRNESS,
    MEMORY,
    START,
    SETUP,
    TENANT_OVERHEAD,
    RLS_QUERY,
    RELAY,
    STREAM_RELAY,
    EMIT_LATENCY,
    EMIT_WRITERS,
    POISON_RELAY,
    CATCH_UP,
)
