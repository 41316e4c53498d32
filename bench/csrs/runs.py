"""Blocks of cases on several processes; what came of each block is kept, so that a run can be stopped and resumed."""

import json
import time
import traceback
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from bench.csrs.drafts import drafted
from bench.csrs.mutations import mutate
from bench.csrs.ring import Ring
from bench.csrs.verdicts import judged
from bench.csrs.world import Attempt, World

BLOCK = 1000
SLOW = 1.0
"""Seconds of one case, by this process's own time, that count as a hang."""
_worlds: list[World] = []


@dataclass
class Tally:
    """What a block has seen. `findings`: each with its case, what was done, and the request."""

    block: int
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0


def world() -> World:
    """One of each process: its keys take a second to make."""
    if not _worlds:
        _worlds.append(World(Ring()))
    return _worlds[0]


def ran(seed: int, block: int, size: int = BLOCK) -> Tally:
    """The cases of one block. Case n of a seed is always mutated in the same way, with other keys."""
    warnings.simplefilter("ignore")
    stage, tally, began = world(), Tally(block), time.process_time()
    for number in range(block * BLOCK, block * BLOCK + size):
        attempt, wrong, took = case(seed, number, stage, tally)
        tally.slowest = max(tally.slowest, took)
        if took > SLOW:
            wrong.append(f"it took {took:.1f} s")
        if wrong:
            tally.findings.append(_told(seed, number, attempt, wrong))
    tally.cases, tally.seconds = size, time.process_time() - began
    return tally


def case(seed: int, number: int, stage: World, tally: Tally) -> tuple[Attempt | None, list[str], float]:
    """One request made, mutated, handed in and judged."""
    attempt, began = None, time.process_time()
    try:
        draft = drafted(Random(f"{seed}/{number}"), stage)  # noqa: S311 - to repeat it
        mutate(draft)
        attempt = draft.attempt()
        began = time.process_time()
        outcome = stage.tried(attempt)
    except BaseException:  # noqa: BLE001 - whatever escapes the decision is what is looked for
        tally.outcomes["crash"] += 1
        return attempt, [traceback.format_exc()], 0.0
    took = time.process_time() - began
    tally.mutations.update(draft.made or ["none"])
    tally.outcomes[outcome.told] += 1
    try:
        return attempt, judged(attempt, outcome, stage), took
    except Exception:  # noqa: BLE001 - what cannot be judged is a finding, too
        return attempt, [traceback.format_exc()], took


def _told(seed: int, number: int, attempt: Attempt | None, wrong: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"seed": seed, "case": number, "wrong": list(wrong)}
    if attempt is not None:
        told |= {"asker": attempt.asker.name, "cluster": attempt.cluster, "agent": attempt.agent, "posted": attempt.post}
        told |= {"labels": dict(attempt.labels), "spec": str(attempt.spec), "pem": b64encode(attempt.pem).decode()}
    return told


def run(seed: int, cases: int, workers: int, kept: Path) -> Iterator[Tally]:
    """Every block up to `cases`: those that `kept` has, and the others as they end."""
    done = {tally.block: tally for tally in _read(kept, seed)}
    yield from done.values()
    missing = [block for block in range(-(-cases // BLOCK)) if block not in done]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(ran, seed, block) for block in missing]):
            tally = future.result()
            with kept.open("a") as file:
                file.write(json.dumps({"seed": seed, **vars(tally)}) + "\n")
            yield tally


def summed(tallies: Sequence[Tally]) -> Tally:
    total = Tally(-1)
    for tally in tallies:
        total.cases += tally.cases
        total.outcomes.update(tally.outcomes)
        total.mutations.update(tally.mutations)
        total.findings += tally.findings
        total.seconds += tally.seconds
        total.slowest = max(total.slowest, tally.slowest)
    return total


def _read(kept: Path, seed: int) -> list[Tally]:
    if not kept.exists():
        return []
    lines = [json.loads(line) for line in kept.read_text().splitlines() if line.endswith("}")]
    return [_tally(line) for line in lines if line.pop("seed") == seed]


def _tally(line: dict[str, Any]) -> Tally:
    return Tally(**{**line, "outcomes": Counter(line["outcomes"]), "mutations": Counter(line["mutations"])})
