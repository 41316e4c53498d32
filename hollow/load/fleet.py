"""The agents of one worker process. The process reports every second, and executes commands of its parent."""

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from hollow.load.agent import LoadAgent
from hollow.load.report import Document, Measures
from hollow.load.session import AgentParts
from hollow.load.settings import LoadSettings, Profile
from machinery.client.kubeconfig import read_kubeconfig
from machinery.errors import InvalidError
from machinery.lifecycle.usage import limit_collections, raise_file_limit, resident
from machinery.observability import logs
from machinery.observability.logs import LogFormat
from machinery.runtime.clock import Clock, SystemClock
from machinery.runtime.directory import PRIVATE_FILE, read_file
from machinery.runtime.tasks import cancel_and_wait
from spoke.credentials.kubeconfigs import HubConnection, connection_of
from spoke.domain.route import Driver
from spoke.ports.cluster import Secrets, SecretSnapshot
from spoke.ports.hub import ClientIdentity, Dial, HubAddress
from spoke.transports.grpc.channel import HubBackoff
from spoke.transports.grpc.client import GrpcHubClient

LAG_PERIOD = 0.1
REPORT_PERIOD = 1.0
PRESENT = "1"
"""Version of every existing secret. Only one process writes a secret, so the version need not change."""


class AgentFiles(Secrets):
    """Stores one file per agent with its names, its credential and its pending certificate request.

    Files are not synced to disk; after the loss of a file the agent joins again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def read(self, name: str) -> SecretSnapshot:
        content = read_file(self._directory / f"{name}.json")
        if content is None:
            return SecretSnapshot({}, None)
        try:
            return SecretSnapshot({key: text.encode() for key, text in json.loads(content).items()}, PRESENT)
        except (ValueError, AttributeError):
            return SecretSnapshot({}, PRESENT)  # unreadable: the agent joins again

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        del version
        staged = self._directory / f".{name}.new"
        staged.unlink(missing_ok=True)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE), "w") as file:
            json.dump({key: content.decode() for key, content in contents.items()}, file)
        staged.replace(self._directory / f"{name}.json")
        return SecretSnapshot(contents, PRESENT)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        (self._directory / f"{name}.json").unlink(missing_ok=True)


def read_bootstrap(path: str) -> HubConnection:
    """Return the hub of a bootstrap kubeconfig. Raises MusterError."""
    connection = connection_of(read_kubeconfig(Path(path)))
    if connection.address.driver is not Driver.GRPC:
        raise InvalidError(f"{path} names no gRPC server of a hub: make one with `hubctl create bootstrap-kubeconfig`")
    return connection


def dial_over_grpc(clock: Clock) -> Dial:
    """Return a new function with which one agent creates its clients of the hub. These clients share one backoff."""
    backoff = HubBackoff()

    def dial(address: HubAddress, identity: ClientIdentity) -> GrpcHubClient:
        return GrpcHubClient(address, identity, clock, backoff=backoff)

    return dial


class Fleet:
    """The agents of the process with the number `process`. `run` runs the agents; `execute` executes commands meanwhile."""

    def __init__(
        self, settings: LoadSettings, process: int, hub: HubConnection, dialer: Callable[[], Dial], clock: Clock
    ) -> None:
        change_period = 60 / settings.changes_per_minute if settings.profile is Profile.CHURN else None
        secrets = AgentFiles(Path(settings.state_dir))
        self._settings = settings
        self._parts = AgentParts(hub, dialer, secrets, clock, Random(), change_period)  # noqa: S311 - spreads load
        self._agents = [LoadAgent(name, self._parts) for name in settings.names_of(process)]
        self._silent: list[LoadAgent] = []
        self._turn = 0
        """Index of the first agent that is silent in the next period of FLAP."""
        self._resident = resident()
        self._reset()

    async def run(self) -> None:
        """Start the agents one after the other within the time `LoadSettings.ramp`. Run them until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_lag(), name="load/lag")
            began, count = loop.time(), len(self._agents)
            for index, agent in enumerate(self._agents):
                await asyncio.sleep(began + self._settings.ramp * index / count - loop.time())
                group.create_task(agent.run(), name="load/agent")

    def execute(self, command: str) -> None:
        """Execute a command.

        `measure`: begin a measurement. `storm`: break all sessions. `flap`: let the silent agents reconnect, and make the next
        agents silent.
        """
        if command == "measure":
            self._parts.measures = Measures()
            self._reset()
        elif command == "storm":
            for agent in self._agents:
                agent.drop()
        elif command == "flap":
            for agent in self._silent:
                agent.resume()
            count = math.ceil(len(self._agents) * self._settings.share)
            order = self._agents[self._turn :] + self._agents[: self._turn]
            self._silent, self._turn = order[:count], (self._turn + count) % max(len(self._agents), 1)
            for agent in self._silent:
                agent.drop(silent=True)

    def snapshot(self) -> Document:
        """Return the measurements since the last `measure` (see `Measures.document`). The counts include the agents' states."""
        measures, passed = self._parts.measures, max(time.monotonic() - self._began, 1e-3)
        measures.processor = time.process_time() - self._processor
        measures.loop_share = (time.thread_time() - self._loop) / passed
        measures.resident = resident() - self._resident
        document = measures.document()
        return {**document, "counts": {**document["counts"], **self._parts.states}}

    def _reset(self) -> None:
        self._began, self._processor, self._loop = time.monotonic(), time.process_time(), time.thread_time()

    async def _watch_lag(self) -> None:
        """Measure how late timers are. If a timer is late by several periods, each of them counts."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + LAG_PERIOD, loop.time())
            await asyncio.sleep(due - loop.time())
            lag = loop.time() - due
            while lag > LAG_PERIOD:
                self._parts.measures.observe("lag", lag)
                lag -= LAG_PERIOD
            self._parts.measures.observe("lag", lag)


async def work() -> None:
    """Run a fleet until the parent closes standard input. The first line of the input has the settings and process number."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = json.loads(await reader.readline())
    settings, clock = LoadSettings.read(first["settings"]), SystemClock()
    fleet = Fleet(
        settings, first["process"], read_bootstrap(settings.bootstrap_kubeconfig), partial(dial_over_grpc, clock), clock
    )

    async def report() -> None:
        while True:
            await asyncio.sleep(REPORT_PERIOD)
            with suppress(BrokenPipeError):
                print(json.dumps(fleet.snapshot(), separators=(",", ":")), flush=True)  # noqa: T201 - for the parent

    async def execute() -> None:
        while line := await reader.readline():
            fleet.execute(line.decode().strip())

    parts = (fleet.run(), report(), execute())
    tasks = [asyncio.create_task(each, name="load/work") for each in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)
    for each in done:
        each.result()


if __name__ == "__main__":
    logs.configure("error", LogFormat.JSON)
    raise_file_limit()
    limit_collections()
    asyncio.run(work())
