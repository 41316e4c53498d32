"""Mutated certificate signing requests, against the hub's own decisions.

python -m bench.csrs [--cases N] [--seed N] [--workers N] [--keep FILE]

What came of it is noted in bench/csrs.md. With --keep a run that was stopped goes on where it was; the same seed makes the same
mutations again.
"""

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.csrs.runs import Tally, run, summed
from machinery.runtime.clock import SystemClock

NOTES = Path(__file__).parent.with_name("csrs.md")
SHOWN = 20


def written(total: Tally, seed: int) -> str:
    """The notes of one run."""
    verdict = (
        "No crash, no hang, no signature that the policy does not allow."
        if not total.findings
        else (f"**{len(total.findings)} findings**")
    )
    when = f"Written by `make fuzz FUZZ=csrs` on {SystemClock().now():%Y-%m-%d}: {total.cases:,} requests in"
    lines = [
        "# The last mutated certificate signing requests",
        "",
        f"{when} {total.seconds / 60:.0f} minutes of CPU (seed {seed}); the slowest took {total.slowest * 1000:.0f} ms.",
        "",
        verdict,
        "",
        "| what became of them | requests |",
        "|---|---|",
        *_rows(total.outcomes),
        "",
        "| what was done to them | requests |",
        "|---|---|",
        *_rows(total.mutations),
    ]
    return "\n".join(lines) + "\n"


def _rows(counted: Counter[str]) -> list[str]:
    return [f"| {name.replace('_', ' ')} | {count:,} |" for name, count in counted.most_common()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))  # noqa: S311 - no secret
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--keep", type=Path, help="a file of what is done, to resume from")
    asked = options.parse_args()
    print(f"seed {asked.seed}", flush=True)
    tallies: list[Tally] = []
    with TemporaryDirectory() as folder:
        for tally in run(asked.seed, asked.cases, asked.workers, asked.keep or Path(folder, "kept")):
            tallies.append(tally)
            for finding in tally.findings[:SHOWN]:
                print(json.dumps(finding, indent=1), flush=True)
    total = summed(tallies)
    NOTES.write_text(written(total, asked.seed))
    print(NOTES.read_text())
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
