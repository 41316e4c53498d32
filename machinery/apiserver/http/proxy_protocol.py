"""Parser for the PROXY protocol header, versions 1 and 2, which carries a client's address through a load balancer.

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt. Type-length-values of version 2 are skipped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

LINE = b"PROXY "
LONGEST_LINE = 107
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED = len(SIGNATURE) + 4
LONGEST = 2048
"""Longest accepted header of version 2 in bytes; the protocol allows 64 KiB."""
LOCAL, PROXIED = 0x20, 0x21
ADDRESSES: dict[int, tuple[type[IPv4Address | IPv6Address], int]] = {0x11: (IPv4Address, 4), 0x21: (IPv6Address, 16)}
"""Address type and size in bytes for TCP over IPv4 and IPv6."""

Networks = tuple[IPv4Network | IPv6Network, ...]


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """`address`: of the client; "": the balancer's own connection, or unknown. `length`: bytes of the header."""

    address: str
    length: int


def is_within(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether an address is in one of the networks; an IPv4-mapped IPv6 address counts as IPv4."""
    try:
        there = ip_address(address)
    except ValueError:
        return False
    there = getattr(there, "ipv4_mapped", None) or there
    return any(there in each for each in networks)


def read_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`, with length 0 if there is none; None: more bytes are needed.

    Raises ValueError when it is malformed or too long.
    """
    for begin, read in ((LINE, _line), (SIGNATURE, _binary)):
        if data[: len(begin)] == begin[: len(data)]:
            return read(data) if len(data) >= len(begin) else None
    return ProxyHeader("", 0)


def _line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LONGEST_LINE)
    if end < 0:
        if len(data) >= LONGEST_LINE:
            raise ValueError("the line does not end")
        return None
    words = data[len(LINE) : end].decode("ascii").split(" ")
    if words[0] == "UNKNOWN":
        return ProxyHeader("", end + 2)
    protocol, source, destination, *ports = words
    kind = {"TCP4": IPv4Address, "TCP6": IPv6Address}[protocol] if protocol in {"TCP4", "TCP6"} else None
    if kind is None or len(ports) != 2 or not all(port.isdecimal() for port in ports):  # noqa: PLR2004 - of both ends
        raise ValueError("the line is malformed")
    kind(destination)
    return ProxyHeader(str(kind(source)), end + 2)


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < FIXED:
        return None
    command, family = data[len(SIGNATURE)], data[len(SIGNATURE) + 1]
    length = FIXED + int.from_bytes(data[FIXED - 2 : FIXED])
    if command not in {LOCAL, PROXIED} or length > LONGEST:
        raise ValueError("the header is of another version or too long")
    if len(data) < length:
        return None
    if command == LOCAL or family not in ADDRESSES:
        return ProxyHeader("", length)
    kind, size = ADDRESSES[family]
    if length < FIXED + 2 * size + 4:
        raise ValueError("the header holds no addresses")
    return ProxyHeader(str(kind(data[FIXED : FIXED + size])), length)
