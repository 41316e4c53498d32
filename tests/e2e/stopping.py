"""What tests of a hub's end have in common: a held database, operators and agents that ask, and what the log told."""

import asyncio
import json
import re
import sqlite3
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from grpc import aio

from machinery.kubeconfig import read_kubeconfig
from machinery.tls import client_context
from tests.e2e.processes import CLUSTERS, Bench, Program, until


@asynccontextmanager
async def held(database: Path, debug: Path) -> AsyncIterator[None]:
    """Within the block nobody can write: whoever does waits, and is in flight.

    Begins once the hub behind the debug socket has nothing of its own to write: its controllers end the step that they are in
    before it stops, and one that waits for the database would hold up a stop by more than the test looks at.
    """
    connection = sqlite3.connect(database, isolation_level=None)

    async def held_at_rest() -> bool:
        connection.execute("BEGIN IMMEDIATE")
        if at_rest(await asked_for_debug(debug)):
            return True
        connection.execute("ROLLBACK")
        return False

    try:
        await until(held_at_rest, what="the hub has nothing of its own to write")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def at_rest(report: str) -> bool:
    """Whether no controller is in a step, and no write is on its way, by the report of a debug socket."""
    sections = re.split(r"^(?:==|--) ", report, flags=re.MULTILINE)
    steps = [section for section in sections if re.match(r"task .* step$", section, re.MULTILINE)]
    writing = [section for section in sections if section.startswith("thread store-writer") and "Writer._run" in section]
    return "thread store-writer" in report and not steps and not writing


def cluster(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


@dataclass(frozen=True, slots=True)
class Answer:
    """`code` 0: nobody answered."""

    code: int
    headers: dict[str, str]
    text: str = ""


class Operator:
    """An HTTP client, an administrator's or a probe's."""

    def __init__(self, session: aiohttp.ClientSession, url: str, context: ssl.SSLContext) -> None:
        self._session = session
        self._url = url
        self._context = context

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        try:
            async with self._session.request(method, self._url + path, json=body, ssl=self._context) as response:
                return Answer(
                    response.status, {key.lower(): value for key, value in response.headers.items()}, await response.text()
                )
        except aiohttp.ClientError as error:
            return Answer(0, {}, repr(error))


@asynccontextmanager
async def operator(bench: Bench, *, fresh: bool = False) -> AsyncIterator[Operator]:
    """`fresh`: it opens a connection for each request."""
    admin = read_kubeconfig(bench.admin)
    shown = admin.require_credential()
    context = client_context(admin.cluster.certificate_authority, shown.chain, shown.key)
    connector = aiohttp.TCPConnector(force_close=fresh, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Operator(session, f"https://127.0.0.1:{bench.https_port}", context)


@asynccontextmanager
async def prober(bench: Bench) -> AsyncIterator[Operator]:
    """As a kubelet asks, which is nobody: who somebody is shows in the database."""
    trust = client_context(read_kubeconfig(bench.admin).cluster.certificate_authority)
    async with aiohttp.ClientSession() as session:
        yield Operator(session, f"https://127.0.0.1:{bench.https_port}", trust)


def admin_channel(bench: Bench) -> aio.Channel:
    """A connection of its own to the door for agents, with the administrator's certificate."""
    admin = read_kubeconfig(bench.admin)
    shown = admin.require_credential()
    credentials = grpc.ssl_channel_credentials(admin.cluster.certificate_authority, shown.key, shown.chain)
    return aio.secure_channel(admin.require_endpoint().grpc_server, credentials, [("grpc.use_local_subchannel_pool", 1)])


def lines(program: Program) -> list[dict[str, Any]]:
    """What it logged; sentences for people are left out."""
    return [json.loads(line) for line in program.output.splitlines() if line.startswith("{")]


def signals(program: Program) -> list[str]:
    return [line["signal"] for line in lines(program) if line["event"] == "lifecycle signal"]


async def signaled(program: Program, name: str, within: float = 20) -> None:
    async def told() -> bool:
        return name in signals(program)

    await until(told, what=f"{program.name} has signaled {name}", within=within)


async def asked_for_debug(socket: Path) -> str:
    """The report of a debug socket."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        return (await asyncio.wait_for(reader.read(), 20)).decode()
    finally:
        writer.close()


__all__ = ["CLUSTERS", "Answer", "Operator"]
