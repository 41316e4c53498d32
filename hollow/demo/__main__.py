"""A fleet on this machine: a hub, three hollow clusters, and three agents, with which the clusters join the hub.

With --hubs=2 there is a second, independent hub, at which the agents have standby registrations. If you kill the first hub, the
agents fail over to the second. With --once the demo itself kills the first hub, and ends when all clusters are Available again.

The demo only starts programs that you could also start by hand. All their files are in one directory. Each start deletes the
files of earlier demos in this directory.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click

from hollow.demo.place import (
    CLUSTERS,
    DemoFolder,
    DemoHub,
    OccupiedError,
    hollow_command,
    hub_command,
    next_commands,
    program,
    relative,
    spoke_command,
)
from hollow.demo.processes import Child, Children, ask

AVAILABLE = "ManagedClusterConditionAvailable"
STANDBY = "ManagedClusterStandby"
POLL_SECONDS = 0.4
ARRIVED_WITHIN = 30.0
"""A cluster must be Available at the second hub within this many seconds after the first hub has ended."""


class DemoError(Exception):
    """The demo has failed. `child`: the program whose log contains the details."""

    def __init__(self, reason: str, child: Child | None = None) -> None:
        super().__init__(reason)
        self.child = child


def unavailable_reason(name: str, cluster: dict[str, Any] | None) -> str | None:
    """Return why the cluster `name` is not Available; None if it is. `cluster`: its ManagedCluster; None: not registered."""
    if cluster is None:
        return f"{name} has not registered"
    if not cluster["spec"].get("hubAcceptsClient"):
        return f"{name} is not accepted"
    verdict = _available(cluster)
    if verdict is None:
        return f"{name} has not joined"
    return None if verdict["status"] == "True" else f"{name} is not Available: {verdict['message']}"


def no_standby_reason(hub: DemoHub, name: str, cluster: dict[str, Any] | None) -> str | None:
    """Return why a cluster has no standby registration at a hub; None if it has one: the hub can take over immediately."""
    if cluster is None:
        return f"{name} has not registered at {hub.name}"
    verdict = _available(cluster)
    return None if verdict and verdict["reason"] == STANDBY else f"{name} does not stand by at {hub.name}"


def _available(cluster: dict[str, Any]) -> dict[str, str] | None:
    conditions = cluster.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == AVAILABLE), None)


class Demo:
    """One run of the demo. The first hub is the owner; the others are standby hubs."""

    def __init__(self, place: DemoFolder, hubs: tuple[DemoHub, ...], deadline: float) -> None:
        self._place = place
        self.hubs = hubs
        self._deadline = deadline
        self._programs: list[Child] = []
        self._began = time.monotonic()
        self.servers: dict[str, Child] = {}
        self.spokes: dict[str, Child] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by the name of the hub, or of the agent's cluster."""
        return {name: child.pid for name, child in {**self.servers, **self.spokes}.items()}

    def print_line(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}")

    async def hubctl(self, hub: DemoHub, *arguments: str) -> CompletedProcess[str]:
        return await ask(program("hubctl", f"--kubeconfig={hub.admin}", *arguments))

    async def serve(self, servers: Children) -> None:
        """Start the hubs and the hollow clusters. Wait until all of them answer."""
        for hub in self.hubs:
            self.servers[hub.name] = await servers.start(hub.name, hub_command(hub))
            self.print_line(f"{hub.name:<14} starts in {hub.folder} (gRPC 127.0.0.1:{hub.grpc}, HTTPS 127.0.0.1:{hub.https})")
        self._programs += [*self.servers.values(), await servers.start("hollow", hollow_command(self._place))]
        self.print_line(f"hollow         starts {len(CLUSTERS)} clusters without machines")
        for hub in self.hubs:
            while not hub.admin.exists() or (await self.hubctl(hub, "get", "clusters")).returncode:
                await self._pause(f"{hub.name} does not answer", self.servers[hub.name])
            self.print_line(f"{hub.name:<14} answers")
        while not all(self._place.cluster(name).exists() for name in CLUSTERS):
            await self._pause("the hollow clusters do not answer", self._programs[-1])
        self.print_line("hollow         clusters answer")

    async def join(self, agents: Children) -> None:
        """Write one bootstrap kubeconfig per cluster and hub, and start the agents."""
        for name in CLUSTERS:
            await asyncio.gather(*(self._bootstrap(name, hub) for hub in self.hubs))
            child = await agents.start(f"spoke-{name}", spoke_command(self._place, name, self.hubs))
            self._programs.append(child)
            self.spokes[name] = child
            files = ", ".join(str(self._place.bootstrap(name, hub)) for hub in self.hubs)
            self.print_line(f"spoke          {name} starts with {files}")

    async def _bootstrap(self, name: str, hub: DemoHub) -> None:
        path = self._place.bootstrap(name, hub)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        options = (f"--cluster={name}", "--allow-loopback", f"--output={path}")
        answer = await self.hubctl(hub, "create", "bootstrap-kubeconfig", *options)
        if answer.returncode:
            raise DemoError(f"hubctl makes no bootstrap kubeconfig for {name}: {answer.stderr.strip()}")

    async def kill_the_owner(self) -> None:
        """Kill the first hub with SIGKILL. Wait until all clusters are Available on the second hub."""
        owner = self.hubs[0]
        self.print_line(f"{owner.name:<14} is killed (kill -9 {self.servers[owner.name].pid})")
        self._programs.remove(self.servers[owner.name])
        self.servers[owner.name].send(signal.SIGKILL)
        await self.servers[owner.name].ended()
        await self._show_arrivals(self.hubs[1])

    async def stay(self) -> None:
        """Wait for the programs. Raises DemoError when one ends, except an agent or, with several hubs, the first hub."""
        watching = {asyncio.create_task(child.ended(), name=str(child.pid)): child for child in self._programs}
        while watching:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await self._handle_end(watching.pop(task))

    async def _handle_end(self, child: Child) -> None:
        """Raises DemoError unless the user may kill this program."""
        if child in self.spokes.values():
            self.print_line(f"{child.name} {child.how_it_ended()}: its cluster becomes Unknown within 12 s")
        elif len(self.hubs) > 1 and child is self.servers[self.hubs[0].name]:
            self.print_line(f"{child.name} {child.how_it_ended()}: its agents go to {self.hubs[1].name}")
            await self._show_arrivals(self.hubs[1])
        else:
            raise DemoError(f"{child.name} {child.how_it_ended()}", child)

    async def _show_arrivals(self, hub: DemoHub) -> None:
        """Print the arrival of each cluster at the hub. Ignore clusters whose agent has also ended."""
        began, wanted = time.monotonic(), {name for name, child in self.spokes.items() if child.exit_code is None}
        while wanted:
            found = await self._inventory(hub)
            for name in sorted(name for name in wanted if unavailable_reason(name, found.get(name)) is None):
                wanted.remove(name)
                self.print_line(f"{name:<14} has arrived on {hub.name}")
            if time.monotonic() - began > ARRIVED_WITHIN:
                raise DemoError(
                    "; ".join(str(unavailable_reason(name, found.get(name))) for name in wanted), self.servers[hub.name]
                )
            await asyncio.sleep(POLL_SECONDS / 4)
        await self._print_table(hub)
        self.print_line(f"all clusters have arrived on {hub.name}")

    async def show_until(self, hub: DemoHub, lacks: Callable[[str, dict[str, Any] | None], str | None]) -> None:
        """Print a hub's inventory at each change, until `lacks` returns None (nothing) for each cluster. Raises DemoError."""
        seen: object = None
        missing: list[str] = []
        while time.monotonic() < self._deadline:
            self._check_programs()
            found = await self._inventory(hub)
            missing = [reason for name in CLUSTERS if (reason := lacks(name, found.get(name)))]
            if missing != seen:
                seen = missing
                await self._print_table(hub)
            if not missing:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise DemoError("; ".join(missing))

    async def _pause(self, otherwise: str, child: Child) -> None:
        """Wait a moment. Raises DemoError with the message `otherwise` after the deadline, or if a program has ended."""
        self._check_programs()
        if time.monotonic() >= self._deadline:
            raise DemoError(otherwise, child)
        await asyncio.sleep(POLL_SECONDS / 2)

    async def _inventory(self, hub: DemoHub) -> dict[str, dict[str, Any]]:
        answer = await self.hubctl(hub, "get", "clusters", "--output=json")
        if answer.returncode:
            raise DemoError(f"hubctl get clusters: {answer.stderr.strip()}", self.servers[hub.name])
        return {item["metadata"]["name"]: item for item in json.loads(answer.stdout)["items"]}

    async def _print_table(self, hub: DemoHub) -> None:
        click.echo()
        if len(self.hubs) > 1:
            click.echo(f"on {hub.name}:")
        click.echo((await self.hubctl(hub, "get", "clusters")).stdout.rstrip() or "no clusters yet")
        click.echo()

    def _check_programs(self) -> None:
        for child in self._programs:
            if child.exit_code is not None:
                raise DemoError(f"{child.name} {child.how_it_ended()}", child)


async def run(place: DemoFolder, *, hubs: int, once: bool, within: float) -> None:
    demo = Demo(place, place.hubs(hubs), time.monotonic() + within)
    async with Children(place.logs) as servers, Children(place.logs) as agents:
        _on_signals(servers, agents)
        await demo.serve(servers)
        await demo.join(agents)
        await demo.show_until(demo.hubs[0], unavailable_reason)
        demo.print_line("all clusters are Available")
        for hub in demo.hubs[1:]:
            await demo.show_until(hub, partial(no_standby_reason, hub))
        if not once:
            click.echo()
            click.echo(next_commands(place, demo.hubs, demo.pids))
            await demo.stay()
        elif hubs > 1:
            await demo.kill_the_owner()
        click.echo()


def _on_signals(*groups: Children) -> None:
    """Install signal handlers. The first signal ends all programs gracefully; the second kills them."""
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
