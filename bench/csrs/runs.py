"""Runs of cases, counted."""

import time
import traceback
import warnings
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from bench.csrs.attempts import drafted
from bench.csrs.verdicts import judged
from bench.csrs.world import World

SLOW_SECONDS = 1.0
"""Processor time of one case that counts as a hang."""


@dataclass
class Tally:
    """What a run has seen. `findings`: each with its case and the request."""

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
    """One per process: its keys take a second to generate."""
    return World()


def run_cases(seed: int, first: int, count: int) -> Tally:
    """Cases `first` to `first + count` of a seed, in this process."""
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
            tally.outcomes[outcome.told] += 1
            wrong = judged(attempt, outcome, stage)
        except BaseException:  # noqa: BLE001 - everything that escapes is a finding
            took, wrong = time.process_time() - case_began, [traceback.format_exc()]
            tally.outcomes["crash"] += 1
        tally.slowest = max(tally.slowest, took)
        if took > SLOW_SECONDS:
            wrong.append(f"it took {took:.1f} s")
        if wrong:
            tally.findings.append({**finding, "wrong": wrong})
    tally.seconds = time.process_time() - began
    return tally
