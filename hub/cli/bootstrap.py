"""A bootstrap kubeconfig: key and request are made here, the hub gets the request alone and answers with the certificate."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hub.cli import addresses
from hub.cli.connection import Door
from hub.cli.errors import CliError
from hub.cli.resources import CREDENTIALS
from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import HubId, Subject, cluster_name
from machinery.kubeconfig import ClusterEntry, Credential, HubEndpoint, write_kubeconfig


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for. Addresses None: those that the hub advertises."""

    cluster: str
    lifetime_seconds: int | None = None
    uses: int = 1
    https_server: str | None = None
    grpc_server: str | None = None
    allow_loopback: bool = False


def create(door: Door, wish: Wish) -> bytes:
    """Makes a credential at the hub and returns its kubeconfig, which holds the private key. Raises CliError.

    Addresses that were given are judged before the hub is asked, so that no credential is made in vain.
    """
    try:
        cluster = cluster_name(wish.cluster)
    except InvalidError as error:
        raise CliError(error.message, exit_code=2) from None
    _judge(wish, wish.https_server, wish.grpc_server, ())
    key = pki.generate_key()
    request = pki.build_request(Subject(common_name=f"bootstrap:{cluster}"), key)
    spec: dict[str, Any] = {"clusterName": cluster, "uses": wish.uses, "request": request.decode("ascii")}
    if wish.lifetime_seconds is not None:
        spec["expirationSeconds"] = wish.lifetime_seconds
    made = door.create(
        CREDENTIALS.path,
        {
            "apiVersion": CREDENTIALS.path.removeprefix("/apis/").rpartition("/")[0],
            "kind": "BootstrapCredential",
            "metadata": {"generateName": "bootstrap-"},
            "spec": spec,
        },
    )
    return _kubeconfig(door, wish, made, key)


def _kubeconfig(door: Door, wish: Wish, made: dict[str, Any], key: bytes) -> bytes:
    status = made["status"]
    https_server = wish.https_server or status["httpsServer"]
    grpc_server = wish.grpc_server or status["grpcServer"]
    try:
        _judge(wish, https_server, grpc_server, tuple(status.get("podAddresses") or ()))
    except CliError:
        door.delete(CREDENTIALS.object_path(made["metadata"]["name"]))
        raise
    entry = ClusterEntry(
        name="hub",
        server=https_server,
        certificate_authority=status["certificateAuthority"].encode("ascii"),
        endpoint=HubEndpoint(grpc_server, HubId(status["hubID"])),
    )
    return write_kubeconfig(
        entry, Credential(status["certificate"].encode("ascii"), key), user=f"bootstrap-{wish.cluster}", context="bootstrap"
    )


def _judge(wish: Wish, https_server: str | None, grpc_server: str | None, pod_addresses: tuple[str, ...]) -> None:
    if wish.allow_loopback:
        return
    if https_server is not None:
        host = urlsplit(https_server).hostname or ""
        if why := addresses.refusal(host, "https", pod_addresses=pod_addresses):
            raise CliError(why, exit_code=2)
    if grpc_server is not None:
        host = grpc_server.rpartition(":")[0]
        if why := addresses.refusal(host, "grpc", pod_addresses=pod_addresses):
            raise CliError(why, exit_code=2)


def save(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from None
