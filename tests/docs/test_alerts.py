"""Holds the alert rules and the dashboard to the metrics that there are, and to the runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from salon_jobs.core.records import PARTITIONS
from salon_jobs.jobs.statistics import OUTCOMES
from tests.docs.markdown import anchors, read, section
from tests.metrics import SERIES

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(read("docs/alerts.yaml"))["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads(read("docs/grafana-dashboard.json"))
# What is not a metric of ours: Prometheus adds it to every series.
SCRAPED = {"instance", "job"}
OTHER_OUTCOMES = "published skipped fired missed enqueued duplicate rejected given_back"
VALUES = {
    "outcome": {*OUTCOMES, *OTHER_OUTCOMES.split()},
    "status": {"waiting", "parked"},
    "loop": {"claim", "sweep", "scheduler", "relay"},
    "kind": {"supervisor", "scheduler", "relay", "consumer"},
    "state": {"due", "scheduled", "failed"},
}
_SERIES = re.compile(r"(?P<name>salon_jobs_\w+)(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\bby\s*\(([^)]*)\)")


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def labels_of(expression: str) -> set[str]:
    """Return the labels that the series of an expression have. Fails for one that is not there, or a wrong label."""
    found: set[str] = set()
    for series in _SERIES.finditer(expression):
        labels = SERIES.get(series["name"])
        assert labels is not None, f"there is no metric {series['name']}"
        for label, pattern in _MATCHER.findall(series["matchers"] or ""):
            assert label in labels, f"{series['name']} has no label {label}"
            assert set(pattern.split("|")) <= VALUES[label], f"{label} is never {pattern}"
        found |= labels
    assert found or _SERIES.search(expression), expression
    return found


def read_by(expression: str) -> tuple[set[str], set[str]]:
    """Return the labels that an expression may show, and those that it groups by."""
    labels = labels_of(expression)
    grouped = {label.strip() for group in _BY.findall(expression) for label in group.split(",")}
    assert grouped <= labels | SCRAPED
    assert expression.count("(") == expression.count(")")
    return labels | SCRAPED, grouped


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_reads_what_is_measured(rule: dict[str, Any]) -> None:
    labels, grouped = read_by(rule["expr"])
    text = " ".join(rule["annotations"].values())
    shown = set(re.findall(r"\$labels\.(\w+)", text))
    aggregated = "(" in rule["expr"].replace("vector(", "")
    assert shown <= (grouped if aggregated else labels), "an aggregation leaves the labels of its by alone"
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_missing_series_are_noticed() -> None:
    """What happens before the first scrape is noticed, too."""
    # increase() of a series that begins above zero is zero; a comparison of a series that is not there is nothing.
    expressions = {rule["alert"]: " ".join(rule["expr"].split()) for rule in RULES}
    missed = 'salon_jobs_cron_ticks_total{outcome="missed"}'
    assert f"{missed} unless {missed} offset 1h" in expressions["SalonJobsCronMissed"]
    for alert in ("NoWorker", "SchedulerSilent", "PartitionsUnowned", "ConsumerStalled"):
        assert re.search(r"or (vector|absent)\(", expressions[f"SalonJobs{alert}"]), alert
    assert expressions["SalonJobsPartitionsUnowned"].endswith(f"< {PARTITIONS}")


@pytest.mark.parametrize(("expression", "legend"), list(dashboard_expressions()))
def test_panel_reads_what_is_measured(expression: str, legend: str) -> None:
    labels, grouped = read_by(expression)
    assert {*re.findall(r"\{\{(\w+)\}\}", legend)} <= (grouped or labels)


def test_every_metric_is_shown_or_alerted() -> None:
    text = " ".join([rule["expr"] for rule in RULES] + [expression for expression, _ in dashboard_expressions()])
    used = {series["name"] for series in _SERIES.finditer(text)}
    known = {name for name in SERIES if not name.endswith(("_sum", "_count"))}
    unused = {name.removesuffix("_bucket") for name in known} - {name.removesuffix("_bucket") for name in used}
    assert unused == {"salon_jobs_process_info", "salon_jobs_relay_paused", "salon_jobs_consumer_received_total"}


def test_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_runbook_has_section_per_alert() -> None:
    runbook = read("docs/operations.md")
    headings = re.findall(r"^### (\w+)$", section(runbook, "## Alerts"), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
        assert anchor in anchors(runbook)
        text = section(runbook, f"### {rule['alert']}")
        assert "**Meaning:**" in text
        assert "**What to do:**" in text
