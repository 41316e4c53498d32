import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.errors import InvalidError
from machinery.kube import config
from machinery.kube.client import KubeClient

PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()


def complete() -> dict[str, Any]:
    return {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", "certificate-authority-data": PEM}}],
        "users": [{"name": "u", "user": {"token": "s3cret"}}],
    }


def without(*path: str) -> Callable[[dict[str, Any]], None]:
    def cut(document: dict[str, Any]) -> None:
        here: Any = document
        for step in path[:-1]:
            here = here[0] if isinstance(here, list) else here
            here = here[step]
        here = here[0] if isinstance(here, list) else here
        del here[path[-1]]

    return cut


async def load(path: Path, folder: Path, **options: Any) -> Any:
    document = config.read_kubeconfig(path)
    return await config.from_kubeconfig(document, origin=str(path), base=path.parent, folder=folder, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    return tmp_path / "keys"


async def test_a_token_kubeconfig_gives_server_ca_and_bearer_token(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(complete()))
    loaded = await load(file, folder)
    assert loaded.host == "https://api.example:6443"
    assert (folder / "cluster-certificate-authority").read_bytes() == base64.b64decode(PEM)
    assert (await loaded.auth_settings())["BearerToken"]["value"] == "Bearer s3cret"


async def test_inline_keys_are_written_for_their_owner_only(tmp_path: Path, folder: Path) -> None:
    document = complete()
    document["users"][0]["user"] = {"client-certificate-data": PEM, "client-key-data": PEM}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    loaded = await load(file, folder)
    assert loaded.key_file == str(folder / "user-client-key")
    assert stat.S_IMODE((folder / "user-client-key").stat().st_mode) == 0o600


async def test_relative_files_are_looked_up_beside_the_kubeconfig(tmp_path: Path, folder: Path) -> None:
    document = complete()
    document["clusters"][0]["cluster"] = {"server": "https://api.example", "certificate-authority": "ca.crt"}
    document["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "ca.crt").write_text("pem")
    (tmp_path / "token").write_text("first\n")
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    loaded = await load(file, folder)
    assert loaded.ssl_ca_cert == str(tmp_path / "ca.crt")
    assert (await loaded.auth_settings())["BearerToken"]["value"] == "Bearer first"


async def test_a_token_file_that_is_empty_or_gone_for_a_moment_leaves_the_token_that_was_read(
    tmp_path: Path, folder: Path
) -> None:
    document = complete()
    document["users"][0]["user"] = {"tokenFile": "token"}
    token, file = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("first")
    file.write_text(yaml.safe_dump(document))
    loaded = await load(file, folder)
    for content in (b"", b"\n", b"\xff\xfe", None):
        token.unlink() if content is None else token.write_bytes(content)
        assert (await loaded.auth_settings())["BearerToken"]["value"] == "Bearer first"
    token.write_text("second")
    assert (await loaded.auth_settings())["BearerToken"]["value"] == "Bearer second"


async def test_another_context_can_be_chosen(tmp_path: Path, folder: Path) -> None:
    document = complete()
    document["contexts"].append({"name": "dev", "context": {"cluster": "d", "user": "u"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "http://127.0.0.1:1"}})
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    assert (await load(file, folder, context="dev")).host == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (without("current-context"), "has no current-context"),
        (without("contexts"), 'has no context "prod"'),
        (without("clusters"), 'has no cluster "c"'),
        (without("users"), 'has no user "u"'),
        (without("contexts", "context", "user"), 'has no user in context "prod"'),
        (without("clusters", "cluster", "server"), "lacks a server"),
        (without("clusters", "cluster", "certificate-authority-data"), "lacks a certificate-authority"),
        (lambda d: d["users"][0].update(user={"client-certificate-data": PEM}), "lacks the user's client-key"),
        (lambda d: d["users"][0].update(user={"as": "somebody"}), "lacks a user's credential"),
        (lambda d: d["clusters"][0]["cluster"].update(server="api.example:6443"), "server is no https:// address"),
        (
            lambda d: d["clusters"][0]["cluster"].update({"certificate-authority-data": "%%%"}),
            "certificate-authority-data of the cluster is not base64",
        ),
        (
            lambda d: d["clusters"][0].update(cluster={"server": "https://a", "certificate-authority": "gone.crt"}),
            "certificate-authority of the cluster names",
        ),
    ],
)
async def test_what_a_kubeconfig_lacks_is_said_by_name(
    tmp_path: Path, folder: Path, break_it: Callable[[dict[str, Any]], None], said: str
) -> None:
    document = complete()
    break_it(document)
    file = tmp_path / "broken.kubeconfig"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidError) as refused:
        await load(file, folder)
    assert str(file) in refused.value.message
    assert said in refused.value.message
    assert "s3cret" not in refused.value.message


async def test_everything_that_is_missing_is_said_at_once(tmp_path: Path, folder: Path) -> None:
    document = complete()
    document["clusters"][0]["cluster"] = {"proxy-url": "http://p"}
    document["users"][0]["user"] = {"as": "x"}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidError, match="a server and a certificate-authority and a user's credential"):
        await load(file, folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read: No such file"), (b"", "empty"), (b"- a", "not a mapping"), (b"token: s3cret: {", "is not YAML")],
)
def test_a_file_that_is_no_kubeconfig_is_refused_without_quoting_it(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidError, match=said) as refused:
        config.read_kubeconfig(file)
    assert str(file) in refused.value.message
    assert "s3cret" not in refused.value.message


async def test_a_certificate_that_is_no_pem_is_refused_with_the_file_name(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(complete()))
    with pytest.raises(InvalidError, match="cannot be loaded") as refused:
        await KubeClient.from_file(file)
    assert str(file) in refused.value.message


async def test_an_exec_plugin_that_fails_is_named_as_the_reason(tmp_path: Path, folder: Path) -> None:
    document = complete()
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false", "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": plugin}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidError, match="credential plugin gave no credential"):
        await load(file, folder)


def test_outside_of_a_pod_the_in_cluster_configuration_is_refused_with_what_to_do() -> None:
    assert "KUBERNETES_SERVICE_HOST" not in os.environ
    with pytest.raises(InvalidError, match="name a kubeconfig"):
        KubeClient.in_cluster()
