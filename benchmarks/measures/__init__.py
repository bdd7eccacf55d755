"""Lists the measures, in the order in which they are run."""

from __future__ import annotations

from typing import Final

from benchmarks.measure import Measure
from benchmarks.measures.drain import DRAIN
from benchmarks.measures.store_drain import STORE_DRAIN

MEASURES: Final[tuple[Measure, ...]] = (DRAIN, STORE_DRAIN)
