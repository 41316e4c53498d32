"""Messages of an agent and a hub as bytes in their order: recorded beside a real client, kept in a file, played again."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from machinery.runtime.clock import SystemClock
from spoke.domain.schedule import Detection
from spoke.ports.hub import ClientIdentity, HubAddress
from spoke.transports.grpc.client import GrpcHubClient

UP, DOWN = "up", "down"
REGISTRATION, SESSION = "muster.registration.v1.Registration", "muster.session.v1.Session"
CONNECT = f"/{SESSION}/Connect"


@dataclass(frozen=True, slots=True)
class Said:
    """One message. `way`: `up` to the hub, or `down`."""

    call: str
    way: str
    message: bytes


@dataclass
class Tape:
    """All of it, in order."""

    said: list[Said] = field(default_factory=list)

    def of(self, call: str, way: str) -> list[bytes]:
        return [each.message for each in self.said if (each.call, each.way) == (call, way)]

    @property
    def calls(self) -> list[str]:
        """In the order in which they were first made."""
        return list(dict.fromkeys(each.call for each in self.said))

    def write(self, file: Path) -> None:
        lines = (json.dumps({"call": s.call, "way": s.way, "message": b64encode(s.message).decode()}) for s in self.said)
        file.write_text("".join(f"{line}\n" for line in lines))


def read_tape(file: Path) -> Tape:
    lines: Iterator[dict[str, str]] = map(json.loads, file.read_text().splitlines())
    return Tape([Said(line["call"], line["way"], b64decode(line["message"])) for line in lines])


class RecordingChannel:
    """A channel whose messages are put on a tape."""

    def __init__(self, channel: aio.Channel, tape: Tape) -> None:
        self._channel = channel
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        """The kinds of calls, recorded; the rest is the channel's."""
        found = getattr(self._channel, name)
        return self._recorded(found) if name in {"unary_unary", "unary_stream", "stream_stream"} else found

    def _recorded(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        def open_call(call: str, request_serializer: Any, response_deserializer: Any, **more: Any) -> Any:
            def serialized(message: Any) -> bytes:
                self._tape.said.append(Said(call, UP, encoded := request_serializer(message)))
                return bytes(encoded)

            def deserialized(encoded: bytes) -> Any:
                self._tape.said.append(Said(call, DOWN, encoded))
                return response_deserializer(encoded)

            return opened(call, request_serializer=serialized, response_deserializer=deserialized, **more)

        return open_call


class RecordedClient(GrpcHubClient):
    """The program's client, with a tape beside it."""

    def __init__(self, address: HubAddress, identity: ClientIdentity, tape: Tape, detection: Detection | None = None) -> None:
        super().__init__(address, identity, SystemClock(), detection)
        self._tape = tape

    @property
    def _channel(self) -> Any:
        return RecordingChannel(super()._channel, self._tape)


def kinds(messages: Sequence[Any]) -> list[str]:
    """Of session messages: which member each has."""
    return [str(message.WhichOneof("message")) for message in messages]
