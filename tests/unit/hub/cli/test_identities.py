"""As whom hubctl goes, by what a kubeconfig says of its user: what comes first, when it is told anew, and what cannot be."""

import json
import os
import pty
import stat
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.cli.client import HubClient
from hub.cli.failures import FAILED, MISUSED, CommandError, ConnectionLostError
from hub.cli.identities import Identity, Shown, identity_of
from hub.cli.kubeconfigs import KubeconfigFiles
from hub.cli.plugin import offered
from machinery.kubeconfig import Credential, read_kubeconfig

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
CERTIFICATE = {name: b64encode(name.encode()).decode() for name in ("client-certificate-data", "client-key-data")}
SHOWN_CERTIFICATE = Credential(b"client-certificate-data", b"client-key-data")
LONG_AGO, FAR = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00+01:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a plug-in that counts its calls and tells what lies in `answer`."""
    program = tmp_path / "plugin"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$KUBERNETES_EXEC_INFO" >> "{tmp_path}/asked"\nexec cat "{tmp_path}/answer"\n'
    )
    program.chmod(stat.S_IRWXU)
    return tmp_path


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    entry = {"server": "https://hub:6443", "certificate-authority-data": b64encode(b"CA").decode(), **cluster}
    document = {
        "clusters": [{"name": "hub", "cluster": {name: value for name, value in entry.items() if value}}],
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "robot"}}],
        "users": [{"name": "robot", "user": user}],
        "current-context": "hub",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def identity(folder: Path, user: dict[str, Any]) -> Identity:
    return identity_of(read_kubeconfig(kubeconfig(folder, user)))


def token_of(user: Identity) -> str:
    return user.shown().token


def plugin(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **fields}


def answer(folder: Path, status: dict[str, str], version: str = V1) -> None:
    (folder / "answer").write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))


def asked(folder: Path) -> list[Any]:
    path = folder / "asked"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_certificate_and_token_are_shown_together_and_a_plug_in_is_not_asked(folder: Path) -> None:
    token = identity(folder, {"token": "one", "exec": plugin()})
    assert token.shown() == Shown(None, "one")
    certificate = identity(folder, {"exec": plugin(), **CERTIFICATE})
    assert certificate.shown() == Shown(SHOWN_CERTIFICATE)
    assert identity(folder, {"token": "one", **CERTIFICATE}).shown() == Shown(SHOWN_CERTIFICATE, "one")
    assert asked(folder) == []
    assert not token.renewed(token.shown())


def test_a_tokens_file_counts_before_the_token_and_the_last_that_could_be_read_stays(folder: Path) -> None:
    file = folder / "token"
    user = identity(folder, {"token": "inline", "tokenFile": "token"})
    assert token_of(user) == "inline"
    file.write_text("one\n")
    assert token_of(user) == "one"
    assert not user.renewed(user.shown())
    file.write_text("two")
    assert user.renewed(Shown(None, "one"))
    for unfinished in (b"", b"\xff\xfe", b"half a token"):
        file.write_bytes(unfinished)
        assert token_of(user) == "two"
    file.unlink()
    assert token_of(user) == "two"


def test_a_tokens_file_is_found_from_the_folder_of_its_kubeconfig_in_a_list_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "token").write_text("one")
    path, other = kubeconfig(folder, {"tokenFile": "token"}), folder / "sub" / "other"
    other.parent.mkdir()
    other.write_text("{}")
    monkeypatch.setenv("HUBCTL_KUBECONFIG", f"{other}:{path}")
    assert token_of(identity_of(KubeconfigFiles.chosen(None).read())) == "one"


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_plug_in_is_asked_when_it_is_needed_and_again_when_it_is_over_or_refused(folder: Path, version: str) -> None:
    user = identity(folder, {"exec": plugin(apiVersion=version)})
    assert asked(folder) == []
    answer(folder, {"token": "one", "expirationTimestamp": FAR}, version)
    first = user.shown()
    assert (first, user.shown(), len(asked(folder))) == (Shown(None, "one"), first, 1)
    answer(folder, {"token": "two", "expirationTimestamp": LONG_AGO}, version)
    assert user.renewed(first)
    assert (token_of(user), len(asked(folder))) == ("two", 2)
    answer(folder, {"token": "three"}, version)
    assert (token_of(user), token_of(user), len(asked(folder))) == ("three", "three", 3)


def test_a_plug_in_tells_a_certificate_a_token_or_both(folder: Path) -> None:
    answer(folder, {"clientCertificateData": "chain", "clientKeyData": "key", "token": "one"})
    assert identity(folder, {"exec": plugin()}).shown() == Shown(Credential(b"chain", b"key"), "one")


def test_a_plug_in_is_told_of_its_cluster_as_kubectl_tells_it(folder: Path) -> None:
    answer(folder, {"token": "one"}, V1BETA1)
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "hub"}}]
    told = plugin(apiVersion=V1BETA1, provideClusterInfo=True)
    path = kubeconfig(folder, {"exec": told}, extensions=extensions, **{"tls-server-name": "inner"})
    identity_of(read_kubeconfig(path)).shown()
    identity(folder, {"exec": plugin(apiVersion=V1BETA1)}).shown()
    cluster = {
        "server": "https://hub:6443",
        "certificate-authority-data": b64encode(b"CA").decode(),
        "tls-server-name": "inner",
        "config": {"audience": "hub"},
    }
    assert [each["spec"] for each in asked(folder)] == [{"interactive": False, "cluster": cluster}, {"interactive": False}]
    assert {each["apiVersion"] for each in asked(folder)} == {V1BETA1}


@pytest.mark.parametrize(("mode", "asks"), [("Never", False), ("IfAvailable", True), ("Always", True)])
def test_a_plug_in_has_the_terminal_where_there_is_one_and_it_wants_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str, *, asks: bool
) -> None:
    answer(folder, {"token": "one"})
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        identity(folder, {"exec": plugin(interactiveMode=mode)}).shown()
    assert [each["spec"]["interactive"] for each in asked(folder)] == [asks]


def test_a_plug_in_that_nobody_waits_for_asks_nobody_and_says_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plugin").write_text("#!/bin/sh\necho look here >&2\nexit 1\n")
    for unseen, said in ((False, "look here\n"), (True, "")):
        with pytest.raises(CommandError, match="failed with exit code 1"):
            identity_of(read_kubeconfig(kubeconfig(folder, {"exec": plugin()})), unseen=unseen).shown()
        assert capfd.readouterr().err == said
    with pytest.raises(CommandError, match="no terminal"):
        identity_of(read_kubeconfig(kubeconfig(folder, {"exec": plugin(interactiveMode="Always")})), unseen=True).shown()
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(kubeconfig(folder, {"exec": plugin()})))
    offered(["get", "cluster", ""])
    assert capfd.readouterr().err == "", "a command line is completed"


def test_what_a_user_shows_is_not_shown_to_people(folder: Path) -> None:
    (folder / "token").write_text("hush")
    answer(folder, {"token": "hush", "clientCertificateData": "hush", "clientKeyData": "hush"})
    for user in ({"token": "hush"}, {"tokenFile": "token"}, {"exec": plugin(env=[{"name": "A", "value": "hush"}])}):
        path = kubeconfig(folder, user)
        found = read_kubeconfig(path)
        assert "hush" not in repr(found) + repr(identity_of(found).shown())


def test_a_plug_in_that_fails_after_it_was_good_is_asked_again_later_unless_what_it_told_was_refused(folder: Path) -> None:
    answer(folder, {"token": "one", "expirationTimestamp": LONG_AGO})
    user = identity(folder, {"exec": plugin()})
    assert token_of(user) == "one"
    (folder / "answer").unlink()
    with pytest.raises(ConnectionLostError, match="failed with exit code"):  # a watch tries again
        user.shown()
    answer(folder, {"token": "two", "expirationTimestamp": FAR})
    assert token_of(user) == "two"
    (folder / "answer").unlink()
    assert user.renewed(user.shown())
    with pytest.raises(CommandError, match="failed with exit code") as ended:
        user.shown()
    assert not isinstance(ended.value, ConnectionLostError)


def said(path: Path) -> CommandError:
    with pytest.raises(CommandError) as refused:
        HubClient(read_kubeconfig(path)).request("GET", "/version")
    return refused.value


UNUSABLE = [
    ({"username": "ann", "password": "hush"}, "use a token, an exec plug-in or `hubctl login`"),
    ({"username": "ann", "token": "hush"}, "has a username or a password"),
    ({"auth-provider": {"name": "gcp", "config": {"access-token": "hush"}}}, "has an auth-provider"),
    ({"token": "hush", "as": "boss"}, "which hubctl does not do"),
    ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "whose apiVersion is not"),
    ({"exec": {"apiVersion": V1}}, "an exec without a command"),
    ({"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Maybe"}}, "interactiveMode is not Never"),
    ({"exec": {"apiVersion": V1, "command": "x", "env": [{"value": "hush"}]}}, "no list of names and values"),
    ({"exec": plugin(command="no-such", installHint="get it\x1b[2J\nthere")}, "not there: get it [2J there"),
    ({"exec": plugin(command="no-such")}, "not there: install it"),
    ({"exec": plugin(command="sh", args=["-c", "exit 3"], installHint="log in")}, "exit code 3: log in"),
    ({"exec": plugin(command="cat", interactiveMode="Always")}, "the standard input is no terminal"),
    ({"exec": plugin(command="cat", args=["\0hush"])}, "cannot be run"),
    ({"token": "hush hush"}, "is no token"),
    ({"token": "hush\nhush"}, "is no token"),
    ({"token": "hüsh-hush"}, "is no token"),
    ({"tokenFile": "no-such-file"}, "cannot be read: No such file"),
    ({"tokenFile": "no-such-file", "token": "hush\nhush"}, "is no token"),
]


@pytest.mark.parametrize(("user", "words"), UNUSABLE)
def test_a_user_that_hubctl_cannot_be_is_told_why_in_one_sentence(folder: Path, user: Any, words: str) -> None:
    path = kubeconfig(folder, user)
    error = said(path)
    assert words in error.sentence
    assert f"kubeconfig {path}" in error.sentence
    assert error.code in (FAILED, MISUSED)
    assert "hush" not in error.sentence
    assert error.sentence.isprintable()


@pytest.mark.parametrize(
    "told",
    [
        "hush",
        {"apiVersion": V1BETA1, "kind": "ExecCredential", "status": {"token": "hush"}},
        {"apiVersion": V1, "kind": "Hush", "status": {"token": "hush"}},
        {"apiVersion": V1, "kind": "ExecCredential", "status": "hush"},
        {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": ["hush"]}},
        {"apiVersion": V1, "kind": "ExecCredential", "status": {"clientKeyData": "hush"}},
        {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "hush\nhush"}},
        {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "hush", "expirationTimestamp": "hush"}},
        {"apiVersion": V1, "kind": "ExecCredential", "status": {"clientCertificateData": "hush", "clientKeyData": "hush"}},
    ],
)
def test_nothing_of_an_answer_that_cannot_be_used_is_told(folder: Path, told: Any) -> None:
    (folder / "answer").write_text(json.dumps(told))
    path = kubeconfig(folder, {"exec": plugin()}, **{"certificate-authority-data": None, "certificate-authority": "ca"})
    (folder / "ca").write_text("")
    error = said(path)
    assert f"kubeconfig {path}" in error.sentence
    assert "hush" not in error.sentence


def test_a_cluster_that_is_not_to_be_verified_is_refused_plainly(folder: Path) -> None:
    path = kubeconfig(folder, {"token": "one"}, **{"certificate-authority-data": None, "insecure-skip-tls-verify": True})
    with pytest.raises(CommandError, match="a hub is always verified: put its CA into certificate-authority-data"):
        KubeconfigFiles.chosen(str(path)).read()


@pytest.mark.parametrize("proxy", ["https://ann:hush@proxy", "socks5://ann:hush@proxy", "http://ann:hush@proxy:port", "proxy"])
def test_a_proxy_that_hubctl_cannot_go_through_is_told_without_its_password(folder: Path, proxy: str) -> None:
    error = said(kubeconfig(folder, {"token": "one"}, **{"proxy-url": proxy}))
    assert (error.code, "is none that hubctl goes through" in error.sentence) == (MISUSED, True)
    assert "hush" not in error.sentence
