"""Kubeconfigs of other clusters and of hubs, and the protocol of credential plugins."""

import base64
import json
import os
import re
import stat
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.client import config, exec_credential as plugins, kubeconfig as hubs
from machinery.client.exec_credential import API_VERSION, ExecCluster, ExecCredential, ExecUser, exec_info, read_exec_info
from machinery.client.kubeconfig import ClusterEntry, Credential, HubEndpoint, parse_kubeconfig, read_kubeconfig
from machinery.client.kubeconfig_documents import read_document
from machinery.client.rest import KubeClient
from machinery.errors import InvalidError
from machinery.identity import HubId
from tests.checks import CASE_FILES, awaited_refusal, check_refusal, check_refusals, present

TABLES = yaml.safe_load((CASE_FILES / "kubeconfigs.yaml").read_text())

PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()


def complete() -> dict[str, Any]:
    return {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", "certificate-authority-data": PEM}}],
        "users": [{"name": "u", "user": {"token": "s3cret"}}],
    }


def edited(document: dict[str, Any], *path: str | int, value: Any = None) -> dict[str, Any]:
    """The document with another value at the path, or with nothing there."""
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


async def load(document: dict[str, Any], place: Path) -> Any:
    """What is read from this document as `kubeconfig` in a folder, with keys in `keys` beside it."""
    file = place / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    (place / "keys").mkdir(exist_ok=True)
    return await config.from_kubeconfig(read_document(file), origin=str(file), base=place, folder=place / "keys")


async def token_of(loaded: Any) -> str:
    return str((await loaded.auth_settings())["BearerToken"]["value"])


async def test_server_ca_and_credential_are_read_from_the_chosen_context(tmp_path: Path) -> None:
    document = complete()
    loaded = await load(document, tmp_path)
    assert loaded.host == "https://api.example:6443"
    assert (tmp_path / "keys" / "cluster-certificate-authority").read_bytes() == base64.b64decode(PEM)
    assert await token_of(loaded) == "Bearer s3cret"
    document["contexts"].append({"name": "dev", "context": {"cluster": "d", "user": "u"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "http://127.0.0.1:1"}})
    assert (await load({**document, "current-context": "dev"}, tmp_path)).host == "http://127.0.0.1:1"
    document["users"][0]["user"] = {"client-certificate-data": PEM, "client-key-data": PEM}
    key = tmp_path / "keys" / "user-client-key"
    assert (await load(document, tmp_path)).key_file == str(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600, "inline keys are for their owner only"


async def test_relative_files_are_looked_up_beside_the_kubeconfig_and_tokens_read_again(tmp_path: Path) -> None:
    document = complete()
    document["clusters"][0]["cluster"] = {"server": "https://api.example", "certificate-authority": "ca.crt"}
    document["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "ca.crt").write_text("pem")
    token = tmp_path / "token"
    token.write_text("first\n")
    loaded = await load(document, tmp_path)
    assert loaded.ssl_ca_cert == str(tmp_path / "ca.crt")
    for content in (b"", b"\n", b"\xff\xfe", None):
        token.unlink() if content is None else token.write_bytes(content)
        assert await token_of(loaded) == "Bearer first", "an empty or missing file leaves the token that was read"
    token.write_text("second")
    assert await token_of(loaded) == "Bearer second"


async def test_what_a_kubeconfig_lacks_is_named_without_its_secrets(tmp_path: Path) -> None:
    at, user = ("clusters", 0, "cluster"), ("users", 0, "user")
    bare = edited(edited(complete(), *at, value={"proxy-url": "http://p"}), *user, value={"as": "x"})
    documents = [(edited(complete(), *path, value=value), text) for value, path, text in TABLES["lacking"]]
    for document, text in [*documents, (bare, "a server and a certificate-authority and a user's credential")]:
        refused = present(await awaited_refusal(InvalidError, load(document, tmp_path)))
        assert text in refused.message, text
        assert "s3cret" not in refused.message, text
        if not text.startswith("credential plugin"):
            assert str(tmp_path / "kubeconfig") in refused.message, text


async def test_file_that_is_no_kubeconfig_is_refused_without_quoting_it(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    rows = {None: "cannot be read: No such file", b"": "empty", b"- a": "not a mapping", b"token: s3cret: {": "is not YAML"}
    for content, text in rows.items():
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidError, match=text) as refused:
            read_document(file)
        assert str(file) in refused.value.message, content
        assert "s3cret" not in refused.value.message, content

    file.write_text(yaml.safe_dump(complete()))
    with pytest.raises(InvalidError, match="cannot be loaded") as refused:
        await KubeClient.from_file(file)
    assert str(file) in refused.value.message
    assert "KUBERNETES_SERVICE_HOST" not in os.environ
    check_refusal(InvalidError, KubeClient.in_cluster, match="name a kubeconfig")


ENDPOINT = HubEndpoint("hub.example:8443", HubId("b2f1d5a0-0000-4000-8000-000000000001"), b"GRPC CA")
CLUSTER = ClusterEntry("muster", "https://hub.example:6443", b"CA", ENDPOINT)
CREDENTIAL = Credential(b"CHAIN", b"KEY")


CLUSTER_AT = ("clusters", 0, "cluster")
EXTENSIONS_AT = (*CLUSTER_AT, "extensions")
EXTENSION_AT = (*EXTENSIONS_AT, 0, "extension")


def document(*path: str | int, value: Any = None) -> dict[str, Any]:
    """A hub's kubeconfig, where a path is given with another value there, or with nothing."""
    written = dict(yaml.safe_load(hubs.write_kubeconfig(CLUSTER, CREDENTIAL, user="bootstrap")))
    return edited(written, *path, value=value) if path else written


def parsed(content: dict[str, Any]) -> Any:
    return parse_kubeconfig(yaml.safe_dump(content).encode(), source="FILE")


def test_hub_kubeconfig_round_trips_and_is_refused_without_endpoint_or_certificate(tmp_path: Path) -> None:
    read = parsed(document())
    assert (read.cluster, read.credential, read.user, read.require_endpoint()) == (CLUSTER, CREDENTIAL, "bootstrap", ENDPOINT)
    assert "KEY" not in repr(CREDENTIAL)
    assert "KEY" not in repr(parsed(document()))
    assert parsed(document(*EXTENSIONS_AT, value=5)).cluster.endpoint is None

    (tmp_path / "kubeconfig").write_bytes(hubs.write_hub_kubeconfig(CLUSTER))
    (tmp_path / "tls.crt").write_bytes(b"CHAIN")
    (tmp_path / "tls.key").write_bytes(b"KEY")
    read = read_kubeconfig(tmp_path / "kubeconfig")
    assert (read.context, read.namespace, read.user) == ("default-context", "configuration", "default-auth")
    assert read.credential == CREDENTIAL

    check_refusal(InvalidError, parsed(document(*EXTENSIONS_AT)).require_endpoint, match=r"FILE.*csr driver")
    with pytest.raises(InvalidError, match="client-certificate-data") as refused:
        parsed(document("users", 0, "user", value={"token": "secret-token"})).require_credential()
    assert "secret-token" not in str(refused.value)


def test_malformed_kubeconfig_is_refused_with_the_file_name(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        *((document("current-context"), "no current-context"), (document("contexts", 0), 'no context "muster"')),
        (document("contexts", 0, "context", "cluster"), "no cluster in context"),
        (document("contexts", 0, "context", "user"), "no user in context"),
        (document("clusters", 0), 'no cluster "muster"'),
        (document("clusters", 0, "cluster", "server"), "lacks the server"),
        (document("clusters", 0, "cluster", "certificate-authority-data"), "the CA"),
        (document("users", 0), 'no user "bootstrap"'),
        (document("users", 0, "user", "client-key-data"), "lacks client-key-data"),
        (document("users", 0, "user", "client-certificate-data"), "lacks client-certificate-data"),
        *((document(*EXTENSION_AT, "grpcServer"), "lacks grpcServer"), (document(*EXTENSION_AT, "hubID"), "lacks hubID")),
    ]
    rows += [
        (document(*CLUSTER_AT, "server", value="https://hub.example:644333"), "host or port"),
        (document(*CLUSTER_AT, "server", value="https://hub.example:port"), "host or port"),
        (document(*CLUSTER_AT, "server", value="https://[hub.example"), "host or port"),
        (document(*CLUSTER_AT, "server", value="https://:6443"), "host or port"),
        (document(*EXTENSION_AT, "grpcServer", value="hub.example:84433"), "host:port"),
        (document(*EXTENSION_AT, "grpcServer", value="fd00::1:8443"), "host:port"),
        (document(*EXTENSION_AT, "grpcServer", value=":8443"), "host:port"),
        (document(*CLUSTER_AT, "proxy-url", value=3128), "proxy-url"),
        (document(*CLUSTER_AT, "tls-server-name", value=True), "tls-server-name"),  # what YAML makes of `yes`
        (document("clusters", value=5), 'no cluster "muster"'),
        (document(*EXTENSIONS_AT, value=[{"name": "muster-cluster", "extension": {"clusterName": 5}}]), "a clusterName"),
        (document(*EXTENSIONS_AT, value=[{"name": "muster-cluster", "extension": "edge1"}]), "a clusterName"),
        (document("users", 0, "user", value={"client-certificate": "a\0b", "client-key": "c"}), "client-certificate"),
    ]
    texts = [(yaml.safe_dump(content).encode(), re.escape(wrong)) for content, wrong in rows]
    texts += [(text, "") for text in (b"", b"[]", b"a: [", b"\xff\xfe\x00")]
    read = partial(parse_kubeconfig, source="FILE", folder=tmp_path)
    check_refusals(InvalidError, read, [(text, f"kubeconfig FILE.*{wrong}") for text, wrong in texts])
    check_refusal(InvalidError, read_kubeconfig, tmp_path / "nowhere", match="nowhere")


ASKED = ExecCluster("https://hub:6443", b"ca", "http://proxy", "hub.example.org")


def test_exec_info_and_credential_round_trip_or_are_refused() -> None:
    assert read_exec_info(exec_info(ASKED)) == ASKED
    credential = ExecCredential("chain", "key", "2026-01-01T00:00:00Z")
    assert plugins.read_credential(json.dumps(plugins.written_credential(credential))) == credential
    assert "key" not in repr(credential).replace("key=", "")
    plugin = ExecUser("hubctl", ("credential", "--x"), {"A": "b"}, install_hint="install it")
    entry = ClusterEntry("hub", "https://hub:6443", b"ca")
    found = parse_kubeconfig(hubs.write_kubeconfig(entry, plugin, user="ann"), source="here")
    assert (found.plugin, found.user, found.credential) == (plugin, "ann", None)
    asked = json.loads(exec_info(ASKED, config={"since": date(2026, 1, 2)}))
    assert asked["spec"]["cluster"]["config"] == {"since": "2026-01-02"}
    check_refusal(InvalidError, read_exec_info, exec_info(None), match="provideClusterInfo: true")
    assert plugins.written_exec(ExecUser("x"))["provideClusterInfo"] is True

    others: list[dict[str, Any]] = [{}, {"exec": 5}, {"exec": {"apiVersion": API_VERSION}}]
    others += [{"exec": {"apiVersion": "v1", "command": "x"}}]
    assert [user for user in others if plugins.read_exec(user) is not None] == []
    ours = {"exec": {"apiVersion": API_VERSION, "command": "x", "env": [{"name": "A", "value": None}, {"name": "B"}]}}
    assert plugins.read_exec(ours) == ExecUser("x", (), {"A": "", "B": ""}, provides_cluster=False)

    beta = json.dumps({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "spec": {}})
    odd = (exec_info(ExecCluster("https://hub", b"")), exec_info(ASKED).replace("Y2E=", "!"))
    check_refusals(InvalidError, read_exec_info, [(text, "") for text in ("", "[" * 100_000, "[]", "{}", beta, *odd)])
    rows: list[Any] = [None, {}, {"clientCertificateData": "c"}, {"clientCertificateData": "c", "clientKeyData": 5}]
    texts = [json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}) for status in rows]
    message = "neither a token|without the other|has no status|not a string among"
    check_refusals(InvalidError, plugins.read_credential, [(text, message) for text in texts])
