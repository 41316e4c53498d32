"""`python -m bench`: the core figures; `python -m bench NAME`: one benchmark of bench/README.md."""

import importlib

import click

COMMANDS = {
    name: f"bench.{name}"
    for name in (
        "core",
        "start",
        "sessions",
        "join",
        "heartbeats",
        "metrics",
        "issuance",
        "hubctl",
        "door",
        "authorization",
        "ownership",
        "audit",
        "backup",
        "bodies",
        "probe",
        "replicas",
        "spread",
        "storm",
        "takeover",
        "availability",
        "rest",
        "failover",
        "revoke",
        "traces",
        "asking",
        "retention",
    )
}


class Figures(click.Group):
    """Loads a benchmark only when it is asked for: some start servers at import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=Figures, invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure. Without a command: the core figures, in at most 40 minutes."""
    if context.invoked_subcommand is None:
        context.invoke(importlib.import_module(COMMANDS["core"]).core)


if __name__ == "__main__":
    bench()
