"""Runs the benchmark's own machinery in its smallest size, without peers; how fast anything was is not judged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.cost.tree import checked_out
from benchmarks.measure import OURS, Goal, Measure, Result
from benchmarks.measures import MEASURES
from benchmarks.processes import ProcessFailed
from benchmarks.report import verdicts
from tests.interpreter import ROOT, run_command, run_python

# Each differs in a number alone from one that stays, or leaves out some of what that does.
_ALIKE = {"drain-machine", "steady-20", "steady-200", "steady-2000", "emit-writers", "poison", "waiting-idle"}
# What is used whenever jobs are done, and when they are added.
WORKER = ["worker", "worker: claimer", "worker: runner", "worker: finisher"]
CLIENT = ["client"]
MEASURED = [measure for measure in MEASURES if measure.name not in _ALIKE]


@pytest.mark.process
@pytest.mark.slow
def test_every_measure_gives_figures(migrated: None, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    names = [measure.name for measure in MEASURED]
    words = ("--size", "smoke", "--peers", "none", "--json", str(path))
    only = [word for name in names for word in ("--only", name)]
    program = str(ROOT / "tests/forked_benchmarks.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python(program, *words, *only, environment=environment, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(path.read_text())
    assert list(run["measures"]) == names
    for measure in MEASURED:
        found = run["measures"][measure.name]
        assert found["failures"] == {}
        assert set(found["medians"][OURS]) == set(measure.units)
        for figures in found["medians"].values():
            # The figures of "setup" are differences between starts of two processes, which vary by milliseconds.
            assert measure.name == "setup" or all(value >= 0 for value in figures.values())
        assert all(len(values) == 1 for figures in found["rounds"].values() for values in figures.values())
    assert {verdict["measure"] for verdict in run["verdicts"]} <= set(run["measures"])
    assert all(verdict["ours"] is not None and verdict["reached"] is not None for verdict in run["verdicts"])
    assert run["machine"]["cores"] >= 1
    assert run["postgresql"]["server_version"]
    assert run["versions"]["python"]
    assert run["size"] == "smoke"
    assert "Medians and goals" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_cost_is_told_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    words = ("--base", str(ROOT), "--jobs", "200", "--rounds", "1", "--json", str(path))
    done = run_command(sys.executable, "-m", "benchmarks.cost", *words, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(path.read_text())
    assert list(run["rounds"]) == ["plain", "store", "plain-after-store", "chunk", "enqueue", "enqueue-many"]
    for measure, trees in run["rounds"].items():
        assert list(trees) == ["base", "here"]
        for [parts] in trees.values():
            by_measure = {"enqueue": CLIENT, "enqueue-many": CLIENT, "plain": WORKER, "plain-after-store": WORKER}
            used = ["all", "server", "WAL", *by_measure.get(measure, [*WORKER, "server: run"])]
            assert all(parts[part] > 0 for part in used)
    assert "plain, worker: runner" in done.stdout


def test_unknown_base_is_named(tmp_path: Path) -> None:
    wrong = "'no-such' is neither a commit nor the folder of a clone"
    with pytest.raises(ProcessFailed, match=wrong), checked_out("no-such", tmp_path):
        pass


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Goal(figure="rate", at_least=100), True),
        (Goal(figure="rate", at_most=100), False),
        (Goal(figure="rate", against="peer", at_least=2), True),
        (Goal(figure="rate", against="peer", at_least=2.1), False),
        (Goal(figure="rate", against="missing", at_least=2), None),
    ],
)
def test_goal_is_judged_by_medians(goal: Goal, expected: bool | None) -> None:
    measure = Measure(name="m", title="", units={"rate": "jobs/s"}, goals=(goal,), contestants=lambda _: NotImplemented)
    result = Result(measure)
    for rate in (1, 200, 1000):
        result.add(OURS, {"rate": rate})
        result.add("peer", {"rate": rate / 2})
    [verdict] = verdicts([result], skipped={})
    assert verdict.reached is expected
    assert verdict.ours == 200


def test_skipped_peer_skips_its_goals() -> None:
    goal = Goal(figure="rate", against="peer", at_least=2)
    measure = Measure(name="m", title="", units={"rate": "jobs/s"}, goals=(goal,), contestants=lambda _: NotImplemented)
    assert verdicts([Result(measure)], skipped={"peer": "left out of this run"}) == []


def test_charts_show_medians_machine_and_date(tmp_path: Path) -> None:
    facts = {
        "began": "2026-01-31T10:00:00+00:00",
        "size": "quick",
        "machine": {"cores": 2},
        "versions": {"python": "3.13.1"},
        "postgresql": {"server_version": "18.1"},
    }
    rates = {OURS: {"rate": 41_000}, "a < b": {"rate": 20_000}}
    waits = {OURS: {"p50": 1.5, "p99": 4}, "late": {"p50": 900, "p99": 10_000}}
    values = {OURS: {"any": [1, 2, 3]}}
    runs = [
        {**facts, "measures": {name: {"medians": medians, "rounds": values}}}
        for name, medians in (("drain", rates), ("latency", waits))
    ]
    run = charts.merged(runs)
    written = charts.write(run, tmp_path)
    assert [path.name for path in written] == ["benchmark-drain.svg", "benchmark-latency.svg"]
    for path, shown in zip(written, ("41,000 jobs/s", "900, 10,000 ms"), strict=True):
        root = ElementTree.parse(path).getroot()
        texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert shown in texts
        assert any("2 cores, 2026-01-31; size quick, medians of 3 rounds" in text for text in texts)
        assert "prefers-color-scheme: dark" in path.read_text()
        width = float(root.attrib["width"])
        bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))
        assert all(float(bar.attrib["x"]) + float(bar.attrib["width"]) <= width for bar in bars)
