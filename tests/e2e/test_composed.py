"""The topology of docker-compose.yml, as plain processes, with folders for volumes and a balancer for the proxy."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.processes import free_port, is_available, until
from tests.e2e.test_documents_typed import ROOT, programs_in
from tests.fakes.forwarder import Forwarder
from tests.trials import soak_only

IMAGE = "muster/"
STOP = 30.0


def variables_of(stage: str) -> dict[str, str]:
    """What the image of that stage of the Dockerfile sets."""
    text = (ROOT / "Dockerfile").read_text().partition(f"FROM programs AS {stage}\n")[2].partition("\nFROM ")[0]
    return dict(line.removeprefix("ENV ").split("=", 1) for line in text.splitlines() if line.startswith("ENV "))


@dataclass
class Composed:
    """The services of a compose file. `database`: URL of an empty one."""

    folder: Path
    database: str
    services: Mapping[str, Any]
    configs: Mapping[str, Any]
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    proxies: AsyncExitStack = field(default_factory=AsyncExitStack)
    _ports: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, folder: Path, database: str) -> "Composed":
        document = yaml.safe_load(file.read_text())
        (programs_in(folder) / "python").symlink_to(sys.executable)  # as in the image: a health check runs it
        return cls(folder, database, document["services"], document["configs"])

    async def up(self) -> None:
        """Starts each service as soon as those that it waits for have come so far."""
        come = {name: asyncio.Event() for name in self.services}

        async def start(name: str) -> None:
            for other in self.services[name].get("depends_on", {}):
                await come[other].wait()
            await self._start(name)
            await self._come_so_far(name)
            come[name].set()

        async with asyncio.TaskGroup() as group:
            for name in self.services:
                group.create_task(start(name), name=name)

    async def down(self) -> None:
        """SIGTERM to all, and SIGKILL to those that remain."""
        for process in self.running.values():
            if process.returncode is None:
                process.terminate()
        try:
            async with asyncio.timeout(STOP):
                await asyncio.gather(*(process.wait() for process in self.running.values()))
        finally:
            for process in self.running.values():
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
            await self.proxies.aclose()

    async def kill(self, name: str) -> None:
        self.running[name].kill()
        await self.running[name].wait()

    async def run(self, name: str, *command: str) -> str:
        """`docker compose exec NAME ...`: what it printed. Fails when it does."""
        process = await self._process(name, command, asyncio.subprocess.PIPE)
        output, _ = await asyncio.wait_for(process.communicate(), STOP)
        assert process.returncode == 0, f"{name}: {' '.join(command)}\n{output.decode()}"
        return output.decode()

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text("utf-8", "replace") if file.exists() else ""

    async def _start(self, name: str) -> None:
        service = self.services[name]
        if not service["image"].startswith(IMAGE):
            if "configs" in service:
                await self._balance(name, self.configs[service["configs"][0]["source"]]["content"])
            return
        command = [*service.get("entrypoint", [service["image"].removeprefix(IMAGE)]), *service.get("command", ["serve"])]
        with (self.folder / f"{name}.log").open("wb") as output:
            self.running[name] = await self._process(name, command, output)

    async def _process(self, name: str, command: Sequence[str], output: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(self._here(name, word) for word in command),
            env=self._environment(name),
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def _come_so_far(self, name: str) -> None:
        """Until what others wait for: its health, or its end."""
        awaited = {
            service["depends_on"][name]["condition"]
            for service in self.services.values()
            if name in service.get("depends_on", {})
        }
        if name not in self.running or awaited <= {"service_started"}:
            return
        if "service_completed_successfully" in awaited:
            code = await asyncio.wait_for(self.running[name].wait(), STOP)
            assert code == 0, f"{name} ended with {code}\n{self.log(name)}"
            return

        async def healthy() -> bool:
            if self.running[name].returncode is not None:
                pytest.fail(f"{name} ended\n{self.log(name)[-3000:]}", pytrace=False)
            _, *test = self.services[name]["healthcheck"]["test"]
            return await (await self._process(name, test, asyncio.subprocess.DEVNULL)).wait() == 0

        await until(healthy, what=f"{name} is healthy")

    async def _balance(self, name: str, configuration: str) -> None:
        """A listener for each front end, before the servers of its back end."""
        for frontend in re.finditer(r"^frontend .*\n\s+bind :(\d+)\n\s+default_backend (\S+)", configuration, re.MULTILINE):
            bound, backend = frontend.groups()
            section = configuration.partition(f"backend {backend}\n    balance")[2].partition("\n\n")[0]
            servers = re.findall(r"^\s+server \S+ (\S+):(\d+)", section, re.MULTILINE)
            assert servers, f"{name}: no server behind {backend}"
            balancer = Forwarder(*(self._port(host, port) for host, port in servers))
            await self.proxies.enter_async_context(balancer.serving(self._port(name, bound)))

    def _environment(self, name: str) -> dict[str, str]:
        service = self.services[name]
        own = variables_of(service["image"].removeprefix(IMAGE)) | service.get("environment", {})
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HUB", "SPOKE", "KUBE", "XDG"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        here = {key: self._here(name, str(value)) for key, value in own.items()}
        if "HUB_DATABASE_URL" in here:
            here["HUB_DATABASE_URL"] = self.database
        return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.folder), **here}

    def _here(self, name: str, text: str) -> str:
        """A piece of the file as it reads on this machine: folders for volumes, ports for names."""
        text = re.sub(r"\$\{\w+:-(\w*)\}", r"\1", text).replace("$$", "$")
        for volume in self.services[name].get("volumes", []):
            source, target = volume.split(":")[:2]
            folder = self.folder / "volumes" / source
            folder.mkdir(parents=True, exist_ok=True)
            text = text.replace(target, str(folder))
        text = text.replace("0.0.0.0:", f"{name}:").replace("localhost:", f"{name}:")
        for other in self.services:
            for port in set(re.findall(rf"(?<![\w.-]){other}:(\d+)", text)):
                text = text.replace(f"{other}:{port}", f"127.0.0.1:{self._port(other, port)}")
        # the address that names stand for here is one that hubctl gives to agents of this machine alone
        return text.replace("create bootstrap-kubeconfig", "create bootstrap-kubeconfig --allow-loopback")

    def _port(self, name: str, port: str) -> int:
        return self._ports.setdefault((name, port), free_port())


pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.timeout(180)]


@soak_only(1)  # in `make test`: tests/integration/test_images.py holds the file against the programs and the image
async def test_what_compose_starts_is_a_fleet_that_outlives_a_replica(tmp_path: Path, postgres_url: str) -> None:
    composed = Composed.read(ROOT / "docker-compose.yml", tmp_path, postgres_url)
    try:
        await composed.up()

        async def asked(replica: str, *words: str) -> list[dict[str, Any]]:
            return list(json.loads(await composed.run(replica, "hubctl", "get", *words, "-o", "json"))["items"])

        async def all_available() -> bool:
            found = await asked("hub-0", "clusters")
            return len(found) == 2 and all(map(is_available, found))

        await until(all_available, what="both clusters are Available")
        assert {each["metadata"]["name"] for each in await asked("hub-1", "replicas")} == {"hub-0", "hub-1"}

        await composed.kill("hub-0")

        async def all_on_the_other() -> bool:
            (left,) = [each for each in await asked("hub-1", "replicas") if each["metadata"]["name"] == "hub-1"]
            return bool(left["status"]["sessions"] == 2)

        await until(all_on_the_other, what="the agents of the killed replica are on the other")
        assert all(map(is_available, await asked("hub-1", "clusters")))
    finally:
        await composed.down()
        for name in composed.running:
            print(f"----- {name}\n{composed.log(name)[-2000:]}")  # noqa: T201 - shown when the test fails
    assert all(process.returncode in (0, -9, 143) for process in composed.running.values())
