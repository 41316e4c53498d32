"""Mutated certificate signing requests against the hub's own decisions: parse, check, submit, approve, issue.

    python -m bench.csrs [--cases N] [--seed N] [--workers N]

The result is written to bench/csrs.md. The same seed makes the same mutations, with other keys.
"""

import json
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

from bench.csrs.runs import Tally, run_cases
from machinery.runtime.clock import SystemClock

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


if __name__ == "__main__":
    main()
