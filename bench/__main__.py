"""`python -m bench`: the core figures; `python -m bench NAME`: one benchmark of bench/README.md."""

import importlib
import os
from pathlib import Path

import click

COMMANDS = {
    "core": "bench.core",
    "start": "bench.processes",
    "hubctl": "bench.processes",
    "join": "bench.processes",
    "rest": "bench.processes",
    "sessions": "bench.sessions",
    "issuance": "bench.sessions",
    "heartbeats": "bench.heartbeats",
    "availability": "bench.heartbeats",
    "door": "bench.door",
    "queries": "bench.queries",
    "bodies": "bench.bodies",
    "failover": "bench.failover",
}
"""The module of each command."""


BYTECODE = Path(__file__).parents[1] / ".cache" / "pycache"


class Benchmarks(click.Group):
    """Imports a benchmark when it is called: some start servers at import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=Benchmarks, invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure. Without a command: the core figures, in at most 40 minutes."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))  # an installed hub does not compile itself at each start
    if context.invoked_subcommand is None:
        context.invoke(importlib.import_module(COMMANDS["core"]).core)


if __name__ == "__main__":
    bench()
