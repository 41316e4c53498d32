"""The words between kubectl and a credential plug-in, in both directions."""

import json
from datetime import date
from typing import Any

import pytest

from machinery.errors import InvalidError
from machinery.execcredential import (
    API_VERSION,
    AskedCluster,
    ExecUser,
    ToldCredential,
    exec_info,
    read_exec,
    read_exec_info,
    read_told,
    told_credential,
    written_exec,
)
from machinery.kubeconfig import ClusterEntry, parse_kubeconfig, write_exec_kubeconfig

CLUSTER = AskedCluster("https://hub:6443", b"ca", "http://proxy", "hub.example.org")


def test_what_is_asked_and_told_comes_back() -> None:
    assert read_exec_info(exec_info(CLUSTER)) == CLUSTER
    told = ToldCredential("chain", "key", "2026-01-01T00:00:00Z")
    assert read_told(json.dumps(told_credential(told))) == told
    assert "key" not in repr(told).replace("key=", "")


def test_a_kubeconfig_names_its_plug_in() -> None:
    plugin = ExecUser("hubctl", ("credential", "--x"), {"A": "b"}, install_hint="install it")
    entry = ClusterEntry("hub", "https://hub:6443", b"ca")
    found = parse_kubeconfig(write_exec_kubeconfig(entry, plugin, user="ann"), source="here")
    assert (found.plugin, found.user, found.credential) == (plugin, "ann", None)


@pytest.mark.parametrize(
    "entry", [{}, {"exec": 5}, {"exec": {"apiVersion": API_VERSION}}, {"exec": {"apiVersion": "v1", "command": "x"}}]
)
def test_a_plug_in_of_another_version_is_none(entry: dict[str, Any]) -> None:
    assert read_exec(entry) is None


def test_a_variable_without_a_value_is_empty() -> None:
    entry = {"exec": {"apiVersion": API_VERSION, "command": "x", "env": [{"name": "A", "value": None}, {"name": "B"}]}}
    assert read_exec(entry) == ExecUser("x", (), {"A": "", "B": ""}, provides_cluster=False)


def test_a_date_in_what_a_cluster_has_for_plug_ins_is_told_as_it_stands() -> None:
    asked = json.loads(exec_info(CLUSTER, config={"since": date(2026, 1, 2)}))
    assert asked["spec"]["cluster"]["config"] == {"since": "2026-01-02"}


def test_without_cluster_info_the_plug_in_says_what_the_kubeconfig_lacks() -> None:
    with pytest.raises(InvalidError, match="provideClusterInfo: true"):
        read_exec_info(exec_info(None))
    assert written_exec(ExecUser("x"))["provideClusterInfo"] is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "spec": {}}),
        exec_info(AskedCluster("https://hub", b"")),
        exec_info(CLUSTER).replace("Y2E=", "!"),
    ],
)
def test_what_cannot_be_used_of_a_question_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        read_exec_info(text)


@pytest.mark.parametrize(
    "status", [None, {}, {"clientCertificateData": "c"}, {"clientCertificateData": "c", "clientKeyData": 5}]
)
def test_what_is_told_without_a_token_or_certificate_and_key_is_refused(status: Any) -> None:
    with pytest.raises(InvalidError, match=r"neither a token|go together|has no status|another thing than a text"):
        read_told(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
