"""A command in a running container, over the WebSocket form of Kubernetes' exec channel; what it writes comes back as bytes.

Sources: Kubernetes' `v5.channel.k8s.io` and `v4.channel.k8s.io`: each binary message is the number of a stream and bytes of it;
the last of stream 3 is a Status that tells how the command ended. The output is given to the caller and to nobody else: no
error and no log holds a part of it. Nothing is written to the command.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp

from machinery.client.errors import from_answer, from_status, from_transport
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import DeadlineError, InvalidError, MusterError, UnavailableError

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDOUT, STDERR, ERROR = 1, 2, 3
NON_ZERO = "NonZeroExitCode"
SHOWN = 200
_PODS = RestResource("", "v1", "pods")


@dataclass(frozen=True, slots=True)
class Container:
    """Where a command runs."""

    namespace: str
    pod: str
    name: str


@dataclass(slots=True)
class _Heard:
    """What has come so far, per stream."""

    limit: int
    streams: dict[int, bytearray] = field(default_factory=dict, repr=False)

    def take(self, message: bytes) -> None:
        """Raises InvalidError when it becomes too much."""
        if not message:
            return
        stream = self.streams.setdefault(message[0], bytearray())
        stream += message[1:]
        if len(stream) > self.limit:
            raise InvalidError("the command wrote more than is taken")

    def of(self, stream: int) -> bytes:
        return bytes(self.streams.get(stream, b""))


async def execute(
    client: KubeClient, container: Container, command: Sequence[str], *, within: timedelta, limit: int = 1 << 20
) -> bytes:
    """What the command wrote to its standard output, once it has ended well.

    Raises the server's refusal, UnavailableError (not reached, or it ended badly), DeadlineError, InvalidError (too much).
    """
    heard, seconds = _Heard(limit), within.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            await _listen(client, container, command, heard)
    except aiohttp.WSServerHandshakeError as error:
        raise from_answer(error.status, b"") from None
    except TimeoutError:
        raise DeadlineError(f"the command in pod {container.pod} did not end within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise from_transport(client.server, error) from error
    if (failure := _failure(heard, container.pod)) is not None:
        raise failure
    return heard.of(STDOUT)


async def _listen(client: KubeClient, container: Container, command: Sequence[str], heard: _Heard) -> None:
    path = _PODS.path(container.pod, namespace=container.namespace, subresource="exec")
    asked = (("container", container.name), ("stdout", "true"), ("stderr", "true"))
    async with client.websocket(path, [*(("command", word) for word in command), *asked], PROTOCOLS) as messages:
        async for message in messages:
            heard.take(message)


def _failure(heard: _Heard, pod: str) -> MusterError | None:
    """What the last word on the error stream says; what the command wrote to its standard error comes with a bad end."""
    try:
        status = json.loads(heard.of(ERROR))
        ended = str(status.get("status"))
    except (ValueError, AttributeError):
        return UnavailableError(f"the connection to pod {pod} ended before the command")
    if ended == "Success":
        return None
    if status.get("reason") != NON_ZERO:
        return from_status(status)
    causes = (status.get("details") or {}).get("causes") or ()
    code = next((cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"), "?")
    said = " ".join(heard.of(STDERR).decode(errors="replace").split())[:SHOWN]
    return UnavailableError(f"the command in pod {pod} ended with exit code {code}: {said}")
