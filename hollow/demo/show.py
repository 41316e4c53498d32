"""The demo's course: servers, then agents, then the inventory until all clusters are Available."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click

from hollow.demo.place import (
    CLUSTERS,
    USUAL_PORTS,
    Place,
    choose_ports,
    hollow_command,
    hub_command,
    program,
    spoke_command,
)
from hollow.demo.processes import Answer, Child, Children, ask

AVAILABLE = "ManagedClusterConditionAvailable"
POLL_SECONDS = 0.4


class DemoError(Exception):
    """The demo cannot go on; `child` is the program whose log tells more."""

    def __init__(self, reason: str, child: Child | None = None) -> None:
        super().__init__(reason)
        self.child = child


def conditions(cluster: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {entry["type"]: entry for entry in cluster.get("status", {}).get("conditions", [])}


def lacking(name: str, cluster: dict[str, Any] | None) -> str | None:
    """What keeps a cluster from being Available; None: it is."""
    if cluster is None:
        return f"{name} has not registered"
    if not cluster["spec"].get("hubAcceptsClient"):
        return f"{name} is not accepted"
    found = conditions(cluster)
    if AVAILABLE not in found:
        return f"{name} has not joined"
    verdict = found[AVAILABLE]
    return None if verdict["status"] == "True" else f"{name} is not Available: {verdict['message']}"


class Demo:
    """One run, from the first program to the last."""

    def __init__(self, place: Place, deadline: float) -> None:
        self._place = place
        self._deadline = deadline
        self._programs: list[Child] = []
        self._began = time.monotonic()
        self.spokes: dict[str, Child] = {}

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}")

    async def hubctl(self, *arguments: str) -> Answer:
        return await ask(program("hub.cli", f"--kubeconfig={self._place.admin}", *arguments))

    async def serve(self, servers: Children) -> None:
        """Starts the hub and the hollow clusters; returns when both answer."""
        grpc, https = choose_ports(*USUAL_PORTS)
        self._programs += [
            await servers.start("hub", hub_command(self._place, grpc, https)),
            await servers.start("hollow", hollow_command(self._place)),
        ]
        self.say(f"hub            starts in {self._place.hub} (gRPC 127.0.0.1:{grpc}, HTTPS 127.0.0.1:{https})")
        self.say(f"hollow         starts {len(CLUSTERS)} clusters without machines")
        await self._until(self._hub_answers, "the hub does not answer")
        self.say("hub            answers")
        await self._until(self._clusters_answer, "the hollow clusters do not answer")
        self.say("hollow         clusters answer")

    async def join(self, agents: Children) -> None:
        """Writes a bootstrap kubeconfig for each cluster and starts its agent."""
        for name in CLUSTERS:
            path = self._place.bootstrap(name)
            answer = await self.hubctl(
                "create", "bootstrap-kubeconfig", f"--cluster={name}", "--allow-loopback", f"--output={path}"
            )
            if answer.code:
                raise DemoError(f"hubctl makes no bootstrap kubeconfig for {name}: {answer.error.strip()}")
            child = await agents.start(f"spoke-{name}", spoke_command(self._place, name))
            self._programs.append(child)
            self.spokes[name] = child
            self.say(f"spoke          {name} starts with {path}")

    async def show_until_available(self) -> None:
        """Prints the inventory whenever it has changed, until every cluster is Available."""
        seen: object = None
        missing: list[str] = []
        while time.monotonic() < self._deadline:
            self._check_programs()
            found = await self._inventory()
            missing = [reason for name in CLUSTERS if (reason := lacking(name, found.get(name)))]
            if missing != seen:
                seen = missing
                await self._print_table()
            if not missing:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise DemoError("; ".join(missing))

    async def stay(self) -> None:
        """Follows the inventory until something ends that should not. A killed spoke is part of the show."""
        watching = {asyncio.create_task(child.ended(), name=str(child.pid)): child for child in self._programs}
        while watching:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                child = watching.pop(task)
                if child not in self.spokes.values():
                    raise DemoError(f"{child.name} {child.how_it_ended()}", child)
                self.say(f"{child.name} {child.how_it_ended()}: its session is gone at once, within 12 s it reads Unknown")

    async def _until(self, ready: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        while not await ready():
            self._check_programs()
            if time.monotonic() >= self._deadline:
                raise DemoError(otherwise, self._programs[0])
            await asyncio.sleep(POLL_SECONDS / 2)

    async def _hub_answers(self) -> bool:
        return self._place.admin.exists() and (await self.hubctl("get", "clusters")).code == 0

    async def _clusters_answer(self) -> bool:
        return all(self._place.cluster(name).exists() for name in CLUSTERS)

    async def _inventory(self) -> dict[str, dict[str, Any]]:
        answer = await self.hubctl("get", "clusters", "--output=json")
        if answer.code:
            raise DemoError(f"hubctl get clusters: {answer.error.strip()}", self._programs[0])
        return {item["metadata"]["name"]: item for item in json.loads(answer.output)["items"]}

    async def _print_table(self) -> None:
        click.echo()
        click.echo((await self.hubctl("get", "clusters")).output.rstrip() or "no clusters yet")
        click.echo()

    def _check_programs(self) -> None:
        for child in self._programs:
            if child.exit_code is not None:
                raise DemoError(f"{child.name} {child.how_it_ended()}", child)
