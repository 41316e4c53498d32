"""The base class of all settings, and types of settings: addresses, durations, sizes and lists, with their error messages."""

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from machinery.durations import parse_duration
from machinery.expression.types import parse_quantity

ENVIRONMENT_PREFIX = "HUB_"
IN_CLUSTER = "in-cluster"
"""The value of `management_cluster` for the cluster in which the hub runs."""
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
MAX_PORT = 65535
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


class SettingsGroup(BaseModel):
    """Settings of one concern. The docstrings of the fields are the program's help."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, written `host:port` or `[v6]:port`. Port 0: no port is given, so the listening port applies."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `host:port` or a bare host (port 0). Raises ValueError."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or text.strip().endswith("]"):
            host, port = text.strip(), "0"
        if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or int(port) > MAX_PORT:
            msg = f'"{text[:80]}" is not an address: write host:port, such as 127.0.0.1:8443, hub.example.org:443 or [::1]:8443'
            raise ValueError(msg)
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def is_loopback(self) -> bool:
        ip = parse_ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether a server that listens here listens at all addresses of the machine."""
        ip = parse_ip(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def local(self) -> "Address":
        """The address at which this machine reaches a server that listens at this address."""
        return Address("::1" if ":" in self.host else "127.0.0.1", self.port) if self.is_wildcard else self


def parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address; None if the host is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _duration(value: object) -> object:
    return value if isinstance(value, timedelta) else parse_duration(_text(value, "a duration, such as 60s"))


def _address(value: object) -> object:
    if value is None or isinstance(value, Address):
        return value
    return Address.parse(_text(value, "an address, such as 127.0.0.1:8443"))


def _text(value: object, what: str) -> str:
    """Return the text of a setting. A file may have a number instead. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be {what}")  # noqa: TRY004 - pydantic takes a ValueError
    return str(value)


def _words(value: object) -> object:
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        size = parse_quantity(value)
    except ValueError:
        size = Fraction(-1)
    if size < 0 or size.denominator != 1:
        msg = f'"{value[:80]}" is not a size in bytes: write a number with a unit, such as 256Mi, 1Gi or 500M'
        raise ValueError(msg)
    return int(size)


def _secret(name: str | None) -> str | None:
    if name is not None and not _SECRET.fullmatch(name):
        raise ValueError(f'"{name[:80]}" is not the name of a Secret: write NAMESPACE/NAME')
    return name


def _with_port(address: Address | None) -> Address | None:
    if address is not None and not address.port:
        raise ValueError("a listening address needs a port between 1 and 65535, as in 127.0.0.1:8443")
    return address


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta():
        raise ValueError("must be longer than 0s")
    return duration


def _not_negative(duration: timedelta) -> timedelta:
    if duration < timedelta():
        raise ValueError("must not be negative")
    return duration


Duration = Annotated[timedelta, BeforeValidator(_duration), AfterValidator(_positive)]
NoDuration = Annotated[timedelta, BeforeValidator(_duration), AfterValidator(_not_negative)]
"""A duration that may be 0s (no duration)."""
Size = Annotated[int, BeforeValidator(_size), Field(ge=0)]
"""Number of bytes, written as a Kubernetes quantity such as 256Mi."""
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
SecretName = Annotated[str | None, AfterValidator(_secret)]
"""Name of a Secret, as NAMESPACE/NAME."""
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
AdvertisedAddress = Annotated[Address | None, BeforeValidator(_address)]
ListenAddress = Annotated[Address, BeforeValidator(_address), AfterValidator(_with_port)]
OptionalListenAddress = Annotated[Address | None, BeforeValidator(_address), AfterValidator(_with_port)]
