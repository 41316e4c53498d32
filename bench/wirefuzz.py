"""Sends mutated bodies of every format, bearer tokens and gRPC messages to a running hub. `bench.fuzz` runs this.

Each part ends after a number of cases or seconds. A finding is an internal error, a missing answer, or an error answer that is
no Status or contains internals of Python.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
from grpc import StatusCode, aio

from bench import generated_input
from bench.agents import bootstrap, register_many
from bench.bodies import JSON
from bench.generated_input import Sent, mutated
from bench.stage import Stage
from hub.grpc_door.errors import REASON
from machinery.client.kubeconfig import read_kubeconfig
from machinery.runtime.tls import client_context
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as session
from tests.checks import PYTHON
from tests.fakes.odd_messages import TEXTS, odd

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
EXCHANGE = "/apis/login.open-cluster-management.io/v1alpha1/tokencredentialrequests"
WITHIN = 20.0
BRIEFLY = 1.0
"""Seconds to wait for the first answer of a stream."""
AT_ONCE = 4
SHOWN = 300
INTERNAL_ERROR, REFUSED = 500, 400
STREAMED = ("FollowRequest", "Recover")
"""Calls of the registration service that answer with a stream."""
CALLS = (*STREAMED, "GetHub", "EnsureCluster", "SubmitRequest", "StandBy", "Leave", "IssueAddOnToken")


@dataclass(slots=True)
class Part:
    """Results for one kind of input."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, outcome: str, wrong: str = "", sent: object = b"") -> None:
        self.outcomes[outcome] += 1
        if wrong:
            self.failures.setdefault(f"{self.name}: {wrong[:SHOWN]}", f"{sent!r}"[:2000])


async def fuzzed(stage: Stage, random: Random, *, cases: int, seconds: float) -> list[Part]:
    """Run all parts, each with at most `cases` cases and `seconds` seconds. The hub must approve `fuzz-*` by rule."""

    async def until_done(part: Part, case: Callable[[], Awaitable[None]]) -> None:
        began, left = time.monotonic(), iter(range(cases))

        async def one_after_another() -> None:
            for _ in left:
                if time.monotonic() - began < seconds:
                    await case()

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
        part.seconds = time.monotonic() - began

    bodies, tokens, messages = Part("bodies"), Part("tokens"), Part("messages")
    kubeconfig = read_kubeconfig(stage.admin)
    credential = kubeconfig.require_credential()
    context = client_context(kubeconfig.cluster.certificate_authority, credential.chain, credential.key)
    known = aiohttp.TCPConnector(ssl=context)
    unknown = aiohttp.TCPConnector(ssl=client_context(kubeconfig.cluster.certificate_authority))
    async with aiohttp.ClientSession(connector=known) as admin, aiohttp.ClientSession(connector=unknown) as stranger:
        ask = _Ask(kubeconfig.cluster.server, admin, stranger)
        await until_done(bodies, lambda: ask.body(bodies, random))
        await until_done(tokens, lambda: ask.token(tokens, random))
    target, credential = await bootstrap(stage)
    agents = await register_many(target, credential, ["fuzz-a"])
    async with target.channel(credential) as first, target.channel(agents[0].credential) as second:
        await until_done(messages, lambda: message(messages, random.choice((first, second)), random))
    return [bodies, tokens, messages]


@dataclass(frozen=True, slots=True)
class _Ask:
    server: str
    admin: aiohttp.ClientSession
    stranger: aiohttp.ClientSession

    async def body(self, part: Part, random: Random) -> None:
        """Send a mutated body. Rarely send it without credentials, because the hub limits refusals per address."""
        who = self.stranger if random.random() < 0.02 else self.admin
        method, path, headers, body = generated_input.written(random)
        if who is self.stranger:
            method, path = "POST", EXCHANGE
        await self._asked(part, who, (method, path, headers, body))

    async def token(self, part: Part, random: Random) -> None:
        """Send a token in a TokenReview, in a token exchange, or as a bearer token."""
        brought = generated_input.token(random)
        text = brought.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": text}}
        kind = random.random()
        if kind < 0.8:
            document = await self._asked(
                part, self.admin, ("POST", REVIEWS, {"Content-Type": JSON}, json.dumps(review).encode())
            )
            found = document.get("status")
            if isinstance(found, dict) and found.get("authenticated"):
                part.note("authenticated", "a token that nobody issued is authenticated", brought)
        elif kind < 0.9:
            reference = {"apiGroup": "login.open-cluster-management.io", "kind": "JWTAuthenticator", "name": "none"}
            wanted = {"spec": {"token": text, "authenticator": reference}}
            await self._asked(part, self.stranger, ("POST", EXCHANGE, {"Content-Type": JSON}, json.dumps(wanted).encode()))
        else:
            letters = "".join(letter for letter in text if letter.isprintable())
            await self._asked(part, self.stranger, ("GET", "/api", {"Authorization": f"Bearer {letters}"}, b""))

    async def _asked(self, part: Part, who: aiohttp.ClientSession, sent: Sent) -> dict[str, Any]:
        method, path, headers, body = sent
        try:
            async with asyncio.timeout(WITHIN), who.request(method, self.server + path, data=body, headers=headers) as response:
                status, content = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            part.note("no answer", f"no answer: {type(error).__name__}", (method, path, headers, body))
            return {}
        wrong, document = "", {}
        if status >= REFUSED and "yaml" not in headers.get("Accept", ""):
            with suppress(ValueError):
                document = json.loads(content)
            message = str(document.get("message", ""))
            if status >= INTERNAL_ERROR:
                wrong = f"{method} {status}"
            elif document.get("kind") != "Status":
                wrong = f"{method} {status} is no Status"
            elif found := _python(message):
                wrong = f"words of Python in a message: {found}"
        elif status < REFUSED and "Accept" not in headers:
            document = json.loads(content)
        part.note(str(status), wrong, (method, path, headers, body, content[:SHOWN]))
        return document if isinstance(document, dict) else {}


async def message(part: Part, channel: aio.Channel, random: Random) -> None:
    """Make one call with an unusual or mutated message, and unusual metadata."""
    metadata = tuple(generated_input.metadata(random))
    if random.random() < 0.2:
        await _session(part, channel, random, metadata)
        return
    method = random.choice(CALLS)
    streams = method in STREAMED
    sent = odd(getattr(registration, f"{method}Request"), random).SerializeToString()
    sent = mutated(sent, random) if random.random() < 0.6 else sent
    path = f"/muster.registration.v1.Registration/{method}"
    call: Any = channel.unary_stream(path) if streams else channel.unary_unary(path)
    try:
        if streams:
            stream = call(sent, metadata=metadata, timeout=WITHIN)
            with suppress(TimeoutError):
                async with asyncio.timeout(BRIEFLY):
                    await stream.read()
            stream.cancel()
        else:
            await call(sent, metadata=metadata, timeout=WITHIN)
        part.note("OK")
    except aio.AioRpcError as error:
        _note(part, error, (method, sent, metadata))
    except asyncio.CancelledError:
        part.note("OK")


async def _session(part: Part, channel: aio.Channel, random: Random, metadata: tuple[tuple[str, Any], ...]) -> None:
    call: Any = channel.stream_stream("/muster.session.v1.Session/Connect")(metadata=metadata, timeout=WITHIN)
    sent = [session.AgentMessage(hello=odd(session.Hello, random)), *(odd(session.AgentMessage, random) for _ in range(4))]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(BRIEFLY):
                for each in sent:
                    raw = each.SerializeToString()
                    await call.write(mutated(raw, random) if random.random() < 0.4 else raw)
                await call.done_writing()
                while await call.read() is not aio.EOF:
                    pass
        call.cancel()
        part.note("OK")
    except aio.AioRpcError as error:
        _note(part, error, ("Connect", sent, metadata))
    except (asyncio.CancelledError, asyncio.InvalidStateError):
        part.note("ended")


def _note(part: Part, error: aio.AioRpcError, sent: object) -> None:
    reason = dict(error.trailing_metadata() or ()).get(REASON)
    wrong = ""
    if reason == "InternalError" or error.code() in (StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED):
        wrong = f"{error.code().name} {reason}"
    elif found := _python(error.details() or ""):
        wrong = f"words of Python in details: {found}"
    part.note(error.code().name, wrong, (sent, error.details()))


def _python(text: str) -> str:
    """Return the first term of Python in the text that does not come from the sent message."""
    return next((found.group() for found in PYTHON.finditer(text) if found.group() not in TEXTS), "")
