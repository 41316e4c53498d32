"""Runs a command in a container over the WebSocket form of Kubernetes' exec channel and returns its output as bytes.

Sources: Kubernetes' `v5.channel.k8s.io` and `v4.channel.k8s.io`. Each binary message is the number of a stream and bytes of the
stream; the last message of stream 3 is a Status with the result. The command gets no input. Only the caller gets the output:
errors and logs contain at most the standard error of a failed command.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    namespace: str
    pod: str
    name: str


async def execute(
    client: KubeClient, container: Container, command: Sequence[str], *, within: timedelta, limit: int = 1 << 20
) -> bytes:
    """Return the standard output of the command after it has succeeded.

    Raises the error of a server's refusal, UnavailableError if the server is unreachable or the command failed, DeadlineError
    after the time `within`, and InvalidError if the standard output or error has more than `limit` bytes.
    """
    seconds = within.total_seconds()
    received: defaultdict[int, bytearray] = defaultdict(bytearray)
    path = _PODS.path(container.pod, namespace=container.namespace, subresource="exec")
    query = [*(("command", word) for word in command), ("container", container.name), ("stdout", "true"), ("stderr", "true")]
    try:
        async with asyncio.timeout(seconds), client.websocket(path, query, PROTOCOLS) as messages:
            async for message in messages:
                if message:
                    received[message[0]] += message[1:]
                    if len(received[message[0]]) > limit:
                        raise InvalidError("the output of the command is too long")
    except aiohttp.WSServerHandshakeError as error:
        raise from_answer(error.status, b"") from None
    except TimeoutError:
        raise DeadlineError(f"the command in pod {container.pod} did not end within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise from_transport(client.server, error) from error
    if (failure := _failure(received, container.pod)) is not None:
        raise failure
    return bytes(received[STDOUT])


def _failure(received: Mapping[int, bytearray], pod: str) -> MusterError | None:
    """Return the error in the Status of the error stream; None: success. It contains the standard error of a failed command."""
    try:
        status = json.loads(received[ERROR])
        ended = str(status.get("status"))
    except (ValueError, AttributeError):
        return UnavailableError(f"the connection to pod {pod} ended before the command")
    if ended == "Success":
        return None
    if status.get("reason") != NON_ZERO:
        return from_status(status)
    causes = (status.get("details") or {}).get("causes") or ()
    code = next((cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"), "?")
    said = " ".join(received[STDERR].decode(errors="replace").split())[:SHOWN]
    return UnavailableError(f"the command in pod {pod} ended with exit code {code}: {said}")
