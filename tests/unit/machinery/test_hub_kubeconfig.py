"""Kubeconfigs that lead to a hub: what is written is read again, and what is missing is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.kubeconfig import (
    ClusterEntry,
    Credential,
    HubEndpoint,
    parse_kubeconfig,
    read_kubeconfig,
    write_hub_kubeconfig,
    write_kubeconfig,
)

ENDPOINT = HubEndpoint("hub.example:8443", HubId("b2f1d5a0-0000-4000-8000-000000000001"), b"GRPC CA")
CLUSTER = ClusterEntry("muster", "https://hub.example:6443", b"CA", ENDPOINT)
CREDENTIAL = Credential(b"CHAIN", b"KEY")


def document() -> dict[str, Any]:
    return dict(yaml.safe_load(write_kubeconfig(CLUSTER, CREDENTIAL, user="bootstrap")))


def parsed(content: dict[str, Any]) -> Any:
    return parse_kubeconfig(yaml.safe_dump(content).encode(), source="FILE")


def test_a_bootstrap_kubeconfig_is_read_as_it_was_written() -> None:
    read = parsed(document())
    assert (read.cluster, read.credential, read.user) == (CLUSTER, CREDENTIAL, "bootstrap")
    assert read.require_endpoint() == ENDPOINT


def test_a_hub_kubeconfig_is_in_ocms_layout_and_reads_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_bytes(write_hub_kubeconfig(CLUSTER))
    (tmp_path / "tls.crt").write_bytes(b"CHAIN")
    (tmp_path / "tls.key").write_bytes(b"KEY")
    read = read_kubeconfig(tmp_path / "kubeconfig")
    assert (read.context, read.namespace, read.user) == ("default-context", "configuration", "default-auth")
    assert read.credential == CREDENTIAL


def test_a_kubeconfig_for_the_other_driver_is_named_as_that() -> None:
    content = document()
    del content["clusters"][0]["cluster"]["extensions"]
    with pytest.raises(InvalidError, match=r"FILE.*csr driver"):
        parsed(content).require_endpoint()


def test_a_user_without_a_certificate_is_named() -> None:
    content = document()
    content["users"][0]["user"] = {"token": "secret-token"}
    with pytest.raises(InvalidError, match="client-certificate-data") as refused:
        parsed(content).require_credential()
    assert "secret-token" not in str(refused.value)


def _without(*path: str | int) -> dict[str, Any]:
    content: Any = document()
    place = content
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return dict(content)


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (_without("current-context"), "no current-context"),
        (_without("contexts", 0), 'no context "muster"'),
        (_without("contexts", 0, "context", "cluster"), "without a cluster"),
        (_without("contexts", 0, "context", "user"), "without a user"),
        (_without("clusters", 0), 'no cluster "muster"'),
        (_without("clusters", 0, "cluster", "server"), "lacks the server"),
        (_without("clusters", 0, "cluster", "certificate-authority-data"), "the CA"),
        (_without("users", 0), 'no user "bootstrap"'),
        (_without("users", 0, "user", "client-key-data"), "lacks client-key-data"),
        (_without("users", 0, "user", "client-certificate-data"), "lacks client-certificate-data"),
        (_without("clusters", 0, "cluster", "extensions", 0, "extension", "grpcServer"), "lacks grpcServer"),
        (_without("clusters", 0, "cluster", "extensions", 0, "extension", "hubID"), "lacks hubID"),
    ],
)
def test_what_a_kubeconfig_lacks_is_said_with_the_files_name(content: dict[str, Any], missing: str) -> None:
    with pytest.raises(InvalidError, match="kubeconfig FILE") as refused:
        parsed(content)
    assert missing in str(refused.value)


def _with(value: Any, *path: str | int) -> dict[str, Any]:
    content: Any = document()
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return dict(content)


CLUSTER_AT = ("clusters", 0, "cluster")
GRPC_AT = (*CLUSTER_AT, "extensions", 0, "extension", "grpcServer")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (_with("https://hub.example:644333", *CLUSTER_AT, "server"), "host or port"),
        (_with("https://hub.example:port", *CLUSTER_AT, "server"), "host or port"),
        (_with("https://[hub.example", *CLUSTER_AT, "server"), "host or port"),
        (_with("https://:6443", *CLUSTER_AT, "server"), "host or port"),
        (_with("hub.example:84433", *GRPC_AT), "host:port"),
        (_with("fd00::1:8443", *GRPC_AT), "host:port"),
        (_with(":8443", *GRPC_AT), "host:port"),
        (_with(3128, *CLUSTER_AT, "proxy-url"), "proxy-url"),
        (_with(True, *CLUSTER_AT, "tls-server-name"), "tls-server-name"),  # noqa: FBT003 - what YAML makes of `yes`
        (_with(5, "clusters"), 'no cluster "muster"'),
        (_with({"client-certificate": "a\0b", "client-key": "c"}, "users", 0, "user"), "client-certificate"),
    ],
)
def test_what_no_kubeconfig_can_say_is_refused_with_the_files_name(content: dict[str, Any], wrong: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="kubeconfig FILE") as refused:
        parse_kubeconfig(yaml.safe_dump(content).encode(), source="FILE", folder=tmp_path)
    assert wrong in str(refused.value)


def test_extensions_that_are_no_list_are_none() -> None:
    assert parsed(_with(5, *CLUSTER_AT, "extensions")).cluster.endpoint is None


@pytest.mark.parametrize("text", [b"", b"[]", b"a: [", b"\xff\xfe\x00"])
def test_what_is_no_kubeconfig_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidError, match="kubeconfig FILE"):
        parse_kubeconfig(text, source="FILE")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="nowhere"):
        read_kubeconfig(tmp_path / "nowhere")


def test_keys_do_not_appear_when_a_credential_is_shown() -> None:
    assert "KEY" not in repr(CREDENTIAL)
    assert "KEY" not in repr(parsed(document()))
