"""Fixes how much work each measure does, for a full run, a short one, a quick one and a test of the harness itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Holds counts of jobs and stores, and durations in seconds. ``drain_jobs`` is shared out to slower peers."""

    rounds: int
    drain_jobs: int
    store_jobs: int
    latency_jobs: int
    waiting: int
    steady_s: float
    enqueue_calls: int
    writers_s: float
    bulk_jobs: int
    fan_out_stores: tuple[int, int]
    deep_rows: int
    shallow_rows: int
    claim_turns: int
    clean_s: float
    pinned_s: float
    fair_backlog: int
    fair_probes: int
    memory_jobs: int
    setup_runs: int
    overhead_calls: int
    rls_rows: int
    rls_repeats: int
    relay_messages: int
    stream_messages: int
    poisoned_messages: int
    deep_messages: int
    wait_s: float
    async_jobs: int
    async_at_once: int
    idle_jobs: int
    idle_at_once: int


SIZES: Final = {
    "full": Sizes(
        rounds=5,
        drain_jobs=100_000,
        store_jobs=20_000,
        latency_jobs=300,
        waiting=500,
        steady_s=10,
        enqueue_calls=5_000,
        writers_s=10,
        bulk_jobs=100_000,
        fan_out_stores=(100, 100_000),
        deep_rows=5_000_000,
        shallow_rows=10_000,
        claim_turns=4,
        clean_s=60,
        pinned_s=300,
        fair_backlog=500_000,
        fair_probes=5,
        memory_jobs=1_000_000,
        setup_runs=15,
        overhead_calls=3_000,
        rls_rows=500_000,
        rls_repeats=400,
        relay_messages=200_000,
        stream_messages=100_000,
        poisoned_messages=200_000,
        deep_messages=5_000_000,
        wait_s=1.0,
        async_jobs=10_000,
        async_at_once=1_000,
        idle_jobs=50_000,
        idle_at_once=5_000,
    ),
    "short": Sizes(
        rounds=3,
        drain_jobs=40_000,
        store_jobs=5_000,
        latency_jobs=100,
        waiting=500,
        steady_s=6,
        enqueue_calls=2_000,
        writers_s=3,
        bulk_jobs=50_000,
        fan_out_stores=(100, 100_000),
        deep_rows=1_000_000,
        shallow_rows=10_000,
        claim_turns=2,
        clean_s=8,
        pinned_s=16,
        fair_backlog=50_000,
        fair_probes=2,
        memory_jobs=200_000,
        setup_runs=15,
        overhead_calls=1_000,
        rls_rows=500_000,
        rls_repeats=200,
        relay_messages=100_000,
        stream_messages=50_000,
        poisoned_messages=200_000,
        deep_messages=1_000_000,
        wait_s=1.0,
        async_jobs=4_000,
        async_at_once=1_000,
        idle_jobs=10_000,
        idle_at_once=5_000,
    ),
    "quick": Sizes(
        rounds=1,
        drain_jobs=20_000,
        store_jobs=2_000,
        latency_jobs=40,
        waiting=500,
        steady_s=4,
        enqueue_calls=1_000,
        writers_s=1.5,
        bulk_jobs=10_000,
        fan_out_stores=(100, 20_000),
        deep_rows=200_000,
        shallow_rows=10_000,
        claim_turns=2,
        clean_s=3,
        pinned_s=20,
        fair_backlog=20_000,
        fair_probes=1,
        memory_jobs=50_000,
        setup_runs=7,
        overhead_calls=300,
        rls_rows=100_000,
        rls_repeats=100,
        relay_messages=50_000,
        stream_messages=20_000,
        poisoned_messages=50_000,
        deep_messages=200_000,
        wait_s=1.0,
        async_jobs=2_000,
        async_at_once=500,
        idle_jobs=6_000,
        idle_at_once=2_000,
    ),
    "smoke": Sizes(
        rounds=1,
        drain_jobs=200,
        store_jobs=100,
        latency_jobs=5,
        waiting=20,
        steady_s=0.5,
        enqueue_calls=20,
        writers_s=0.2,
        bulk_jobs=200,
        fan_out_stores=(3, 20),
        deep_rows=400,
        shallow_rows=200,
        claim_turns=1,
        clean_s=0.5,
        pinned_s=0.5,
        fair_backlog=400,
        fair_probes=1,
        memory_jobs=400,
        setup_runs=1,
        overhead_calls=20,
        rls_rows=2_000,
        rls_repeats=3,
        relay_messages=1_000,
        stream_messages=300,
        poisoned_messages=500,
        deep_messages=2_000,
        wait_s=0.02,
        async_jobs=40,
        async_at_once=10,
        idle_jobs=40,
        idle_at_once=20,
    ),
}
