"""`python -m bench`: every figure of bench/README.md, each by its own command."""

import importlib

import click

COMMANDS = {
    name: f"bench.{name}"
    for name in (
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
    """Measure. Without a command: everything, one after the other, with each one's defaults."""
    if context.invoked_subcommand is None:
        for name in COMMANDS:
            click.echo(f"== {name}")
            command = context.command.get_command(context, name) if isinstance(context.command, click.Group) else None
            if command is not None:
                context.invoke(command)


if __name__ == "__main__":
    bench()
