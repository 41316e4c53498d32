"""A Kubernetes-style API of your own: books, kept in memory, served on loopback to everyone who reaches it.

python examples/own_api.py 8001
kubectl --server http://127.0.0.1:8001 get books
"""

import asyncio
import sys
from contextlib import suppress

from aiohttp import web

from machinery.apiserver.access import Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.resource import AGE, ApiGroup, Column, Resource
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.runtime.clock import SystemClock

SPEC = {
    "type": "object",
    "required": ["author"],
    "properties": {"author": {"type": "string"}, "copies": {"type": "integer", "minimum": 0, "default": 1}},
}
BOOK = Resource(
    group="library.example.com",
    version="v1",
    name="books",
    kind="Book",
    short_names=("bk",),
    schema={"type": "object", "required": ["spec"], "properties": {"spec": SPEC}},
    columns=(Column("Author", lambda row: row.document["spec"]["author"]), AGE),
)


class Everyone(Authenticator, Authorizer):
    """Before you serve it beyond loopback, decide here who may do what."""

    async def authenticate(self, request: web.Request) -> Actor:  # noqa: ARG002 - the protocol's signature
        return Actor("reader", ("system:authenticated",))

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:  # noqa: ARG002 - the same
        return Decision(allowed=True)


async def start(port: int) -> Listening:
    everyone = Everyone()
    server = ApiServer(
        [ApiGroup(BOOK.group, (BOOK,))],
        MemoryStorage(),
        authenticator=everyone,
        authorizer=everyone,
        clock=SystemClock(),
        version={"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    )
    return await serve(server.application(), "127.0.0.1", port)


async def main(port: int) -> None:
    listening = await start(port)
    print(f"kubectl --server http://127.0.0.1:{listening.port} get books")
    await asyncio.Event().wait()  # until Ctrl-C


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1])))
