"""`python -m bench`: the core figures; `python -m bench NAME`: one benchmark of bench/README.md."""

import os
from pathlib import Path

import click

from bench import bodies, console, core, door, failover, heartbeats, processes, queries, scale, sessions
from bench.stage import benchmark

BYTECODE = Path(__file__).parents[1] / ".cache" / "pycache"


@click.group(invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure. Without a command: the core figures, in at most 40 minutes."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))  # keeps bytecode between starts, as for an installed hub
    if context.invoked_subcommand is None:
        context.invoke(core.core)


for command in (core.core, bodies.bodies):
    bench.add_command(command)
for measure in (
    *(processes.start, processes.join, processes.rest, sessions.sessions, sessions.issuance, heartbeats.heartbeats),
    *(door.door, queries.queries, failover.failover, console.console, scale.scale),
):
    bench.add_command(benchmark(measure))


if __name__ == "__main__":
    bench()
