"""The core figures in one unattended run, compared with the committed baseline.

    python -m bench core [--only NAME ...] [--record]

Each figure is measured once, with a calibration loop before and after it. For processor time, the figure is divided by the time
of the loop. This ratio is compared, because it differs less between machines than seconds do. The run fails if a figure is
worse than the worst run in `baseline.json` by more than the spread of those runs. The table is written to `figures.md`.
`--record` appends the run to the baseline.
"""

import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import door, failover, heartbeats, processes, sessions
from machinery.runtime.clock import SystemClock

HERE = Path(__file__).parent
TABLE, BASELINE = HERE / "figures.md", HERE / "baseline.json"
LEAST_SPREAD = 0.10
"""Share of the median by which a figure may always differ, even if the spread of the baseline's runs is smaller."""
ENOUGH_RUNS = 3
"""If the baseline has fewer runs, a figure is shown but not judged."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `key`: path of the value in the result of the measurement. Smaller values are better."""

    name: str
    unit: str
    bar: float
    measurement: str
    key: str
    is_processor_time: bool = False

    def value(self, found: Mapping[str, Any]) -> float:
        value: Any = found
        for part in self.key.split("."):
            value = value[part]
        return float(value)


MEASUREMENTS: dict[str, Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]] = {
    "start": processes.start,
    "join": processes.join,
    "issuance": sessions.issuance,
    "sessions": sessions.sessions,
    "door": lambda: door.door(watchers=50),
    "heartbeats": heartbeats.heartbeats,
    "failover": failover.failover,
}

FIGURES = (
    Figure("hub: start to ready, p50", "s", 1.2, "start", "ready_p50_seconds"),
    Figure("hub at rest, PSS", "MiB", 100, "join", "hub_at_rest_pss_mib"),
    Figure("agent: start to Available, p50", "s", 0.9, "join", "available_p50_seconds"),
    Figure("agent, PSS", "MiB", 60, "join", "spoke_pss_mib"),
    Figure("300 CSRs at once, until all are issued", "s", 2.0, "issuance", "seconds"),
    Figure("hub, per certificate", "ms", 6, "issuance", "hub_cpu_milliseconds_per_certificate", is_processor_time=True),
    Figure("hub, per session start", "ms", 4, "sessions", "hub_cpu_milliseconds_per_session_start", is_processor_time=True),
    Figure(
        "hub, per heartbeat, 1,000 sessions", "µs", 90, "heartbeats", "hub_cpu_microseconds_per_beat", is_processor_time=True
    ),
    Figure("hub with 1,000 sessions, PSS", "MiB", 250, "heartbeats", "hub_pss_mib"),
    Figure("hub, list of 5,000 clusters", "ms", 100, "door", "list.hub_cpu_ms", is_processor_time=True),
    Figure("hub, page of 100", "ms", 5, "door", "page.hub_cpu_ms", is_processor_time=True),
    Figure("hub, label selector of 1/60", "ms", 6, "door", "selector.hub_cpu_ms", is_processor_time=True),
    Figure("fail-over after a crash, p50", "s", 1.0, "failover", "crash_p50_seconds"),
    Figure("fail-over after a crash, p99", "s", 2.5, "failover", "crash_p99_seconds"),
    Figure("fail-over from a silent hub, p50", "s", 12, "failover", "silent_link_p50_seconds"),
    Figure("fail-over from a silent hub, p99", "s", 18, "failover", "silent_link_p99_seconds"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure. `compared`: the value, or its ratio to the calibration loop, like the value in the baseline."""

    figure: Figure
    value: float
    ratio: float | None
    load: float

    @property
    def compared(self) -> float:
        return self.value if self.ratio is None else self.ratio


def calibrate() -> float:
    """Return the processor time in milliseconds of a fixed piece of work: dictionaries, strings, JSON and hashes."""
    began = time.process_time()
    for number in range(12_000):
        document = {"metadata": {"name": f"cluster-{number}", "labels": {str(each): each for each in range(12)}}}
        text = json.dumps(document)
        hashlib.sha256(text.encode()).hexdigest()
        json.loads(text)
    return (time.process_time() - began) * 1e3


def limit_of(samples: Sequence[float]) -> float | None:
    """Return the largest value within the noise of the baseline; None: the baseline has too few runs."""
    if len(samples) < ENOUGH_RUNS:
        return None
    spread = max(max(samples) - min(samples), LEAST_SPREAD * statistics.median(samples))
    return max(samples) + spread


def table(rows: Sequence[Row], baseline: Mapping[str, Sequence[float]], began: str, commit: str) -> Iterator[str]:
    yield "# Core figures"
    yield ""
    yield f"Written by `make bench` on {began}, commit {commit}, {os.cpu_count()} cores, everything on one machine."
    yield "Ratio: the value divided by the processor time of the calibration loop of the same run, times 1,000."
    yield "Baseline: the median of the recorded runs, of the ratio where there is one. Load: average of the minute before."
    yield ""
    yield "| figure | bar | value | reached | ratio | baseline (runs) | worse than its noise | load |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        figure, samples = row.figure, baseline.get(row.figure.name, ())
        cells = (
            figure.name,
            f"{figure.bar:g} {figure.unit}",
            f"{row.value:g} {figure.unit}",
            "yes" if row.value <= figure.bar else "**no**",
            "" if row.ratio is None else f"{row.ratio:.4g}",
            f"{statistics.median(samples):.4g} ({len(samples)})" if samples else "none",
            "**yes**" if is_worse(row, samples) else "no" if limit_of(samples) is not None else "too few runs",
            f"{row.load:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def is_worse(row: Row, samples: Sequence[float]) -> bool:
    limit = limit_of(samples)
    return limit is not None and row.compared > limit


def measured(names: Sequence[str]) -> list[Row]:
    """Run these measurements one after the other. Return all their figures."""
    rows = []
    for name in names:
        load, before = os.getloadavg()[0], calibrate()
        click.echo(f"== {name}", err=True)
        found = asyncio.run(MEASUREMENTS[name]())
        loop = (before + calibrate()) / 2
        for figure in (each for each in FIGURES if each.measurement == name):
            value = figure.value(found)
            ratio = value / loop * 1_000 if figure.is_processor_time else None
            rows.append(Row(figure, value, ratio, load))
            click.echo(f"{figure.name}: {value:g} {figure.unit}", err=True)
    return rows


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Measure only these; figures.md stays as it is."
)
@click.option("--record", is_flag=True, help="Append this run to the baseline. Do it on an idle machine.")
def core(only: Sequence[str], *, record: bool) -> None:
    """The core figures, in one table, compared with the baseline. Exit code 1: a figure is worse than its noise."""
    began = f"{SystemClock().now():%Y-%m-%d %H:%M} UTC"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE
    ).stdout.strip()
    baseline: dict[str, list[float]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    rows = measured(only or list(MEASUREMENTS))
    lines = "\n".join(table(rows, baseline, began, commit)) + "\n"
    click.echo(lines)
    if not only:
        TABLE.write_text(lines)
    if record:
        for row in rows:
            baseline.setdefault(row.figure.name, []).append(round(row.compared, 4))
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
    worse = [row.figure.name for row in rows if is_worse(row, baseline.get(row.figure.name, ()))]
    if worse and not record:
        raise click.ClickException(f"worse than the baseline by more than its noise: {', '.join(worse)}")
