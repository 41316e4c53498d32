"""A TLS server as a stranger sees it: what it shows, whether it is the hub's, and whether it wants to know who asks.

TLS must end at the hub: it knows agents and operators by the certificates that they show, and whoever ends TLS before it
swallows them. A TLS server that demands no client certificate at the agents' door, that shows another's certificate, or that
speaks no HTTP/2 there, is none of ours.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from hub.settings.fields import Address
from machinery import pki
from machinery.errors import InvalidError
from machinery.runtime.tls import client_context, shown_certificate

PATIENCE = timedelta(seconds=5)
LISTENS = timedelta(seconds=2)
"""How long a server may take to answer a preface, or to refuse it."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Of HTTP/2, with empty settings."""
WRONG_NAME = frozenset((62, 64))
"""OpenSSL's codes for a name or an address that the certificate lacks."""


class Trouble(Enum):
    """Why a server is not the one that was looked for."""

    NAME = auto()
    """The host's name means nothing here."""
    CONNECTION = auto()
    STRANGER = auto()
    """Another's certificate."""
    HOST = auto()
    """The hub's certificate, without this name."""
    DATES = auto()
    NO_TLS = auto()
    NO_HTTP2 = auto()
    TERMINATED = auto()
    """It asks for no client certificate."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """What came of it. `said`: the network's, or the certificate's own words."""

    trouble: Trouble | None
    said: str = ""


async def dial(address: Address, trust: bytes, *, grpc: bool) -> Dialled:
    """One connection; `grpc`: the agents' door, which demands a client certificate and speaks HTTP/2."""
    context = client_context(trust)
    context.set_alpn_protocols(["h2"] if grpc else ["http/1.1"])
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.host
            )
    except ssl.SSLCertVerificationError as error:
        return await _distrusted(address, error)
    except ssl.SSLError as error:
        return Dialled(Trouble.NO_TLS, error.reason or "no TLS")
    except (OSError, TimeoutError) as error:
        return _unreached(error)
    try:
        return Dialled(await _terminated(reader, writer) if grpc else None)
    finally:
        writer.transport.abort()


def _unreached(error: OSError) -> Dialled:
    if isinstance(error, socket.gaierror):
        return Dialled(Trouble.NAME, (error.strerror or "no such name").lower())
    return Dialled(Trouble.CONNECTION, (error.strerror or str(error) or "no answer in time").lower())


async def _terminated(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Trouble | None:
    if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
        return Trouble.NO_HTTP2
    return Trouble.TERMINATED if await _is_let_in(reader, writer) else None


async def _is_let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether HTTP/2 is spoken with somebody who has shown no certificate. TLS 1.3 refuses only after its handshake."""
    with suppress(OSError, TimeoutError):
        writer.write(PREFACE)
        async with asyncio.timeout(LISTENS.total_seconds()):
            return bool(await reader.read(1))
    return False


async def _distrusted(address: Address, error: ssl.SSLCertVerificationError) -> Dialled:
    shown = await _shown(address)
    if error.verify_code in WRONG_NAME:
        return Dialled(Trouble.HOST, shown)
    dates = "expired" in error.verify_message or "not yet valid" in error.verify_message
    return Dialled(Trouble.DATES if dates else Trouble.STRANGER, shown)


async def _shown(address: Address) -> str:
    """The certificate that was shown, in words; "" where it is shown to nobody a second time."""
    with suppress(OSError, TimeoutError, InvalidError):
        async with asyncio.timeout(PATIENCE.total_seconds()):
            der = await shown_certificate(address.host, address.port)
        facts = pki.parse_certificate(ssl.DER_cert_to_PEM_cert(der).encode())
        names = ", ".join((*facts.dns_names, *facts.ip_addresses)) or "no name"
        return f"for {names}, until {facts.not_after:%Y-%m-%d}"
    return ""
