"""Tests the hub's decisions (parse, check, submit, approve, issue) with mutated certificate signing requests.

    python -m bench.csrs [--cases N] [--seed N] [--workers N]

The result is written to bench/csrs.md. The same seed gives the same mutations, but with other keys.
"""

import json
import random
import sys
import time
import traceback
import warnings
from base64 import b64encode
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import click

from bench.csrs.attempts import drafted
from bench.csrs.verdicts import judged
from bench.csrs.world import World
from machinery.runtime.clock import SystemClock

SLOW_SECONDS = 1.0
"""A case with more processor time counts as a hang."""


@dataclass
class Tally:
    """The counts of a run. `findings`: each with its case and the request."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0

    def add(self, other: "Tally") -> None:
        self.cases += other.cases
        self.outcomes.update(other.outcomes)
        self.mutations.update(other.mutations)
        self.findings += other.findings
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)


@cache
def world() -> World:
    """Return the world of this process. It is cached, because its keys take a second to generate."""
    return World()


def run_cases(seed: int, first: int, count: int) -> Tally:
    """Run the cases from `first` to `first + count` of a seed, in this process."""
    warnings.simplefilter("ignore")
    tally, stage, began = Tally(cases=count), world(), time.process_time()
    for number in range(first, first + count):
        finding: dict[str, Any] = {"seed": seed, "case": number}
        case_began = time.process_time()
        try:
            attempt, made = drafted(Random(f"{seed}/{number}"), stage)  # noqa: S311 - to repeat it
            pem = b64encode(attempt.pem).decode()
            finding |= {"asker": attempt.asker.name, "attempt": repr(attempt)[:2000], "pem": pem}
            tally.mutations.update(made or ["none"])
            case_began = time.process_time()
            outcome = stage.tried(attempt)
            took = time.process_time() - case_began
            tally.outcomes[outcome.result] += 1
            wrong = judged(attempt, outcome, stage)
        except BaseException:  # noqa: BLE001 - any exception is a finding
            took, wrong = time.process_time() - case_began, [traceback.format_exc()]
            tally.outcomes["crash"] += 1
        tally.slowest = max(tally.slowest, took)
        if took > SLOW_SECONDS:
            wrong.append(f"it took {took:.1f} s")
        if wrong:
            tally.findings.append({**finding, "wrong": wrong})
    tally.seconds = time.process_time() - began
    return tally


NOTES = Path(__file__).parent.with_name("csrs.md")
BLOCK = 1000


def _notes(total: Tally, seed: int) -> str:
    def rows(title: str, counted: Counter[str]) -> list[str]:
        lines = [f"| {name.replace('_', ' ')} | {count:,} |" for name, count in counted.most_common()]
        return ["", f"| {title} | requests |", "|---|---|", *lines]

    passed = "No crash, no hang, no certificate that the policy does not allow."
    written = (
        f"Written by `make fuzz FUZZ=csrs` on {SystemClock().now():%Y-%m-%d}: {total.cases:,} requests in "
        f"{total.seconds / 60:.0f} minutes of processor time (seed {seed}). The slowest took {total.slowest * 1000:.0f} ms."
    )
    lines = [
        "# Mutated certificate signing requests: the last run",
        "",
        written,
        "",
        f"**{len(total.findings)} findings**" if total.findings else passed,
        *rows("outcome", total.outcomes),
        *rows("mutation", total.mutations),
    ]
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
@click.option("--cases", default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=lambda: random.randrange(10**6), help="Repeats the mutations of a run.")  # noqa: S311 - no secret
@click.option("--workers", default=2, show_default=True)
def main(cases: int, seed: int, workers: int) -> None:
    total, blocks = Tally(), range(0, cases, BLOCK)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for tally in pool.map(run_cases, [seed] * len(blocks), blocks, [min(BLOCK, cases - first) for first in blocks]):
            total.add(tally)
            for finding in tally.findings:
                click.echo(json.dumps(finding, indent=1))
            click.echo(f"{total.cases:,} of {cases:,}, {len(total.findings)} findings", err=True)
    NOTES.write_text(_notes(total, seed))
    click.echo(NOTES.read_text())
    sys.exit(1 if total.findings else 0)
