"""Metrics in the Prometheus formats. Needs the prometheus-client extra, imported when /metrics is requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.metrics import BOUNDS_S, Sample, Timings, bounded

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


# Every third bound, so each is 2.8 times the one before. Stored histograms are finer, but Prometheus pays per series.
_STEP: Final = 3


def exposition(samples: Iterable[Sample], *, accept: str = "") -> tuple[bytes, str]:
    """Return the samples and the process's own as text, and the content type negotiated from ``accept``.

    Raises ConfigurationError when prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError("metrics need prometheus-client: pip install 'salon-jobs[prometheus]'") from error
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Samples(samples))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the requested version is not a number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Samples:
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        from prometheus_client.metrics_core import Metric as Family  # noqa: PLC0415

        families: dict[str, Family] = {}
        for metric, value, given in bounded(self._samples):
            name = metric.name.removesuffix("_total")
            family = families.get(name)
            if family is None:
                family = families[name] = Family(name, metric.help, metric.kind.value)
            labels = dict(zip(metric.labels, given, strict=True))
            if not isinstance(value, Timings):
                family.add_sample(metric.name, labels, value)
                continue
            up_to = list(accumulate(value.counts))
            for number in range(0, len(BOUNDS_S), _STEP):
                bound = {**labels, "le": f"{BOUNDS_S[number]:.4g}"}
                family.add_sample(f"{metric.name}_bucket", bound, up_to[number])
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, up_to[-1])
            family.add_sample(f"{metric.name}_count", labels, up_to[-1])
            family.add_sample(f"{metric.name}_sum", labels, value.sum_s)
        yield from families.values()
