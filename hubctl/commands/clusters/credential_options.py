"""Validates the options of `hubctl create bootstrap-kubeconfig`. Each function raises CommandError with what to write."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hubctl.commands.clusters.addresses import split_host
from hubctl.errors import CommandError


def named_cluster(name: str) -> str:
    from machinery.errors import InvalidError  # noqa: PLC0415 - beside the import that raises it
    from machinery.identity import cluster_name  # noqa: PLC0415 - only needed here

    try:
        return cluster_name(name) if name else ""
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None


def terms(chosen: dict[str, Any]) -> dict[str, Any]:
    taken = {name: chosen[name] for name in ("allow_loopback", "token", "patterns", "cluster_set")}
    return {
        **taken,
        "lifetime": _lifetime(chosen["expires"]),
        "uses": _uses(chosen["uses"]),
        "labels": dict(map(_label, chosen["labels"])),
        "attestation": _attestation(chosen),
    }


def _attestation(chosen: dict[str, Any]) -> dict[str, str]:
    said = {
        "issuer": chosen["attest_issuer"],
        "keys": _content(chosen["attest_keys"]),
        "certificateAuthority": _content(chosen["attest_ca"]),
        "audience": chosen["attest_audience"],
        "subject": chosen["attest_subject"],
    }
    told = {field: text for field, text in said.items() if text}
    if told and not said["issuer"]:
        raise CommandError("the other --attest options need --attest-issuer URL", code=2)
    return told


def _content(name: str | None) -> str:
    try:
        return Path(name).read_text() if name else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {getattr(error, 'strerror', '') or 'it is no text'}", code=2) from None


def _uses(text: str) -> int | None:
    if text == "unlimited":
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise CommandError(f'--uses "{text}" is not a number: give 1 or more, or unlimited', code=2)
    return int(text)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CommandError(f'--label "{text}" is no label: write KEY=VALUE', code=2)
    return key, value


def https_address(server: str | None) -> str:
    if not server:
        return ""
    parts = urlsplit(server)
    try:
        good = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username or parts.query or parts.fragment:
        raise CommandError(f'--server "{server}" is not an address: write https://HOST:PORT', code=2)
    return server.rstrip("/")


def grpc_address(address: str | None) -> str:
    if not address:
        return ""
    try:
        host, port = split_host(address)
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise CommandError(f'--grpc-server "{address}" is not an address: write HOST:PORT', code=2)
    return address


def _lifetime(text: str) -> timedelta | None:
    """None: the hub's default."""
    if not text:
        return None
    from machinery.durations import parse_duration  # noqa: PLC0415 - only needed here

    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--expires {error}", code=2) from None
    if lifetime < timedelta(seconds=1):
        raise CommandError(f'--expires "{text}" is over before it begins: give at least 1s', code=2)
    return lifetime
