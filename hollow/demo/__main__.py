"""A whole fleet on this machine: a hub, three hollow clusters, and three agents that join them to it.

With --hubs=2 there is a second, independent hub. The agents are on standby there and fail over when the first is
killed: by you, or with --once by the demo.

Only programs are started, as a person would start them by hand; nothing here knows how they work inside. Everything they write
lies in one directory, made anew at every start.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import click

from hollow.demo.place import DemoFolder, OccupiedError, next_commands, relative
from hollow.demo.processes import Children
from hollow.demo.show import Demo, DemoError


async def run(place: DemoFolder, *, hubs: int, once: bool, within: float) -> None:
    demo = Demo(place, place.hubs(hubs), time.monotonic() + within)
    async with Children(place.logs) as servers, Children(place.logs) as agents:
        _on_signals(servers, agents)
        await demo.serve(servers)
        await demo.join(agents)
        await demo.show_until_available()
        demo.print_line("all clusters are Available")
        await demo.show_until_in_reserve()
        if not once:
            click.echo()
            click.echo(next_commands(place, demo.hubs, demo.pids))
            await demo.stay()
        elif hubs > 1:
            await demo.kill_the_owner()
        click.echo()


def _on_signals(*groups: Children) -> None:
    """The first signal ends all programs gracefully, the second kills them."""
    task = asyncio.current_task()
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping or task is None:
            for children in groups:
                children.kill()
        else:
            click.echo("\nending ...", err=True)
            task.cancel()
        is_stopping = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--once", is_flag=True, help="End as soon as all clusters are Available (with --hubs: on the second hub).")
@click.option(
    "--hubs", default=1, show_default=True, type=click.IntRange(1, 5), help="How many hubs, none knowing of the others."
)
@click.option("--within", default=60.0, show_default=True, metavar="SECONDS", help="Give up when it takes longer.")
@click.option(
    "--directory",
    default=Path(".demo"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where everything lies; emptied at the start.",
)
def main(*, hubs: int, once: bool, within: float, directory: Path) -> None:
    place = DemoFolder(directory.absolute())
    try:
        with place.claimed():
            asyncio.run(run(place, hubs=hubs, once=once, within=within))
    except OccupiedError as error:
        raise click.ClickException(str(error)) from error
    except DemoError as error:
        click.echo(f"\nThe demo failed: {error}", err=True)
        if error.child is not None:
            click.echo("\n".join(f"  | {line}" for line in error.child.last_words()), err=True)
        click.echo(f"The logs are in {relative(place.logs)}.", err=True)
        sys.exit(1)
    except asyncio.CancelledError:
        sys.exit(130 if once else 0)


if __name__ == "__main__":
    main()
