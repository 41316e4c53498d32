"""The identity of hubctl, from its kubeconfig or from a login that it keeps: precedence, renewal, privacy and refusals."""

import io
import json
import os
import pty
import stat
import sys
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest
import yaml

from hubctl.auth.identity import RequestCredentials, UserIdentity, identity_of
from hubctl.auth.kubeconfig import KubeconfigFiles
from hubctl.auth.token_sources import (
    CERTIFICATE,
    TOKENS,
    LoginCache,
    TokenSource,
    current_token,
    expires_at,
    forget_all,
    store_tokens,
)
from hubctl.client.http import ApiClient
from hubctl.client.token_exchange import MIN_VALIDITY, LoginKey, checked_authenticator, load_credential
from hubctl.errors import FAILED, MISUSED, CommandError, ConnectionLostError
from hubctl.kubectl_plugin import offered
from machinery.client.exec_credential import ExecCluster
from machinery.client.kubeconfig import Credential, read_kubeconfig
from machinery.meta.timestamps import format_time
from tests.checks import CASE_FILES, check_refusal, present
from tests.fakes.identity import SigningKey

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
OWN_CERTIFICATE = {name: b64encode(name.encode()).decode() for name in ("client-certificate-data", "client-key-data")}
SHOWN_CERTIFICATE = Credential(b"client-certificate-data", b"client-key-data")
RETRIED, FAR = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00+01:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a plug-in that counts its calls and prints the file `answer`."""
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


def identity(folder: Path, user: dict[str, Any]) -> UserIdentity:
    return identity_of(read_kubeconfig(kubeconfig(folder, user)))


def token_of(user: UserIdentity) -> str:
    return user.current().token


def plugin(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **fields}


def answer(folder: Path, status: dict[str, str], version: str = V1) -> None:
    (folder / "answer").write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))


def asked(folder: Path) -> list[Any]:
    path = folder / "asked"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_request_that_the_hub_refuses_for_its_load_is_sent_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, pauses = CommandError("HTTP status 429", reason="TooManyRequests"), Mock()
    answered = Mock(sock=None), Mock(headers=Message(), read=lambda: b'{"kind": "Ok"}')
    monkeypatch.setattr("hubctl.client.http.time.sleep", pauses)
    monkeypatch.setattr(ApiClient, "_send", Mock(side_effect=[busy, busy, answered, *[busy] * 5]))
    client = ApiClient(read_kubeconfig(kubeconfig(folder, {"token": "t"})))
    assert (client.request("PATCH", "/apis/x", {"a": 1}), pauses.call_count) == ({"kind": "Ok"}, 2)
    check_refusal(CommandError, client.get, "/version", match="429")


def test_certificate_and_token_are_shown_together_and_a_plug_in_is_not_asked(folder: Path) -> None:
    token = identity(folder, {"token": "one", "exec": plugin()})
    assert token.current() == RequestCredentials(None, "one")
    assert identity(folder, {"exec": plugin(), **OWN_CERTIFICATE}).current() == RequestCredentials(SHOWN_CERTIFICATE)
    assert identity(folder, {"token": "one", **OWN_CERTIFICATE}).current() == RequestCredentials(SHOWN_CERTIFICATE, "one")
    assert (asked(folder), token.renewed(token.current())) == ([], False)


def test_token_file_counts_before_the_token_and_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "token"
    user = identity(folder, {"token": "inline", "tokenFile": "token"})
    assert token_of(user) == "inline"
    file.write_text("one\n")
    assert (token_of(user), user.renewed(user.current())) == ("one", False)
    file.write_text("two")
    assert user.renewed(RequestCredentials(None, "one"))
    for unfinished in (b"", b"\xff\xfe", b"half a token"):
        file.write_bytes(unfinished)
        assert token_of(user) == "two"
    file.unlink()
    assert token_of(user) == "two"
    file.write_text("three")
    path, other = kubeconfig(folder, {"tokenFile": "token"}), folder / "sub" / "other"
    other.parent.mkdir()
    other.write_text("{}")
    monkeypatch.setenv("HUBCTL_KUBECONFIG", f"{other}:{path}")
    assert token_of(identity_of(KubeconfigFiles.chosen(None).read())) == "three", "found from its own kubeconfig's folder"


def test_a_plug_in_is_called_when_needed_and_again_when_its_answer_expires_or_is_refused(folder: Path) -> None:
    for number, version in enumerate((V1, V1BETA1)):
        user = identity(folder, {"exec": plugin(apiVersion=version)})
        assert len(asked(folder)) == 3 * number
        answer(folder, {"token": "one", "expirationTimestamp": FAR}, version)
        first = user.current()
        assert (first, user.current(), len(asked(folder))) == (RequestCredentials(None, "one"), first, 3 * number + 1)
        answer(folder, {"token": "two", "expirationTimestamp": RETRIED}, version)
        assert user.renewed(first)
        assert (token_of(user), len(asked(folder))) == ("two", 3 * number + 2)
        answer(folder, {"token": "three"}, version)
        assert (token_of(user), token_of(user), len(asked(folder))) == ("three", "three", 3 * number + 3)


def test_a_plug_in_returns_certificate_and_token_and_gets_its_cluster_as_from_kubectl(folder: Path) -> None:
    answer(folder, {"clientCertificateData": "chain", "clientKeyData": "key", "token": "one"}, V1BETA1)
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "hub"}}]
    reported = plugin(apiVersion=V1BETA1, provideClusterInfo=True)
    path = kubeconfig(folder, {"exec": reported}, extensions=extensions, **{"tls-server-name": "inner"})
    assert identity_of(read_kubeconfig(path)).current() == RequestCredentials(Credential(b"chain", b"key"), "one")
    identity(folder, {"exec": plugin(apiVersion=V1BETA1)}).current()
    cluster = {
        "server": "https://hub:6443",
        "certificate-authority-data": b64encode(b"CA").decode(),
        "tls-server-name": "inner",
        "config": {"audience": "hub"},
    }
    assert [each["spec"] for each in asked(folder)] == [{"interactive": False, "cluster": cluster}, {"interactive": False}]
    assert {each["apiVersion"] for each in asked(folder)} == {V1BETA1}


def test_a_plug_in_gets_the_terminal_where_there_is_one_and_it_wants_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(folder, {"token": "one"})
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        for mode in ("Never", "IfAvailable", "Always"):
            identity(folder, {"exec": plugin(interactiveMode=mode)}).current()
    assert [each["spec"]["interactive"] for each in asked(folder)] == [False, True, True]


def test_plug_in_in_the_background_asks_and_prints_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plugin").write_text("#!/bin/sh\necho look here >&2\nexit 1\n")
    for prompts, text in ((True, "look here\n"), (False, "")):
        with pytest.raises(CommandError, match="failed with exit code 1"):
            identity_of(read_kubeconfig(kubeconfig(folder, {"exec": plugin()})), prompts=prompts).current()
        assert capfd.readouterr().err == text
    with pytest.raises(CommandError, match="not a terminal"):
        identity_of(read_kubeconfig(kubeconfig(folder, {"exec": plugin(interactiveMode="Always")})), prompts=False).current()
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(kubeconfig(folder, {"exec": plugin()})))
    offered(["get", "cluster", ""])
    assert capfd.readouterr().err == "", "a command line is completed"


def test_what_a_user_shows_is_not_shown_to_people(folder: Path) -> None:
    (folder / "token").write_text("hush")
    answer(folder, {"token": "hush", "clientCertificateData": "hush", "clientKeyData": "hush"})
    for user in ({"token": "hush"}, {"tokenFile": "token"}, {"exec": plugin(env=[{"name": "A", "value": "hush"}])}):
        found = read_kubeconfig(kubeconfig(folder, user))
        assert "hush" not in repr(found) + repr(identity_of(found).current())


def test_a_plug_in_that_fails_after_it_was_good_is_asked_again_later_unless_what_it_returned_was_refused(folder: Path) -> None:
    answer(folder, {"token": "one", "expirationTimestamp": RETRIED})
    user = identity(folder, {"exec": plugin()})
    assert token_of(user) == "one"
    (folder / "answer").unlink()
    with pytest.raises(ConnectionLostError, match="failed with exit code"):  # a watch tries again
        user.current()
    answer(folder, {"token": "two", "expirationTimestamp": FAR})
    assert token_of(user) == "two"
    (folder / "answer").unlink()
    assert user.renewed(user.current())
    with pytest.raises(CommandError, match="failed with exit code") as ended:
        user.current()
    assert not isinstance(ended.value, ConnectionLostError)


def error_of(path: Path) -> CommandError:
    with pytest.raises(CommandError) as refused:
        ApiClient(read_kubeconfig(path)).request("GET", "/version")
    return refused.value


def test_an_unusable_user_is_refused_in_one_sentence_without_secrets(folder: Path) -> None:
    for user, words in yaml.safe_load((CASE_FILES / "kubeconfig-users.yaml").read_text())["unusable"]:
        path = kubeconfig(folder, user)
        error = error_of(path)
        assert words in error.sentence, user
        assert f"kubeconfig {path}" in error.sentence, user
        assert error.code in (FAILED, MISUSED), user
        assert "hush" not in error.sentence, user
        assert error.sentence.isprintable(), user


def credential(status: Any, **changed: str) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status, **changed}


def test_nothing_of_an_unusable_answer_of_a_plug_in_is_printed(folder: Path) -> None:
    path = kubeconfig(folder, {"exec": plugin()}, **{"certificate-authority-data": None, "certificate-authority": "ca"})
    (folder / "ca").write_text("")
    for text in (
        "hush",
        credential({"token": "hush"}, apiVersion=V1BETA1),
        credential({"token": "hush"}, kind="Hush"),
        credential("hush"),
        credential({"token": ["hush"]}),
        credential({"clientKeyData": "hush"}),
        credential({"token": "hush\nhush"}),
        credential({"token": "hush", "expirationTimestamp": "hush"}),
        credential({"clientCertificateData": "hush", "clientKeyData": "hush"}),
    ):
        (folder / "answer").write_text(json.dumps(text))
        error = error_of(path)
        assert f"kubeconfig {path}" in error.sentence, text
        assert "hush" not in error.sentence, text


def test_an_unverified_cluster_and_an_unusable_proxy_are_refused_without_the_proxys_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(folder, {"token": "one"}, **{"certificate-authority-data": None, "insecure-skip-tls-verify": True})
    with pytest.raises(CommandError, match="a hub is always verified: put its CA into certificate-authority-data"):
        KubeconfigFiles.chosen(str(path)).read()
    monkeypatch.setenv("https_proxy", "http://ann:hush@elsewhere:1")
    for proxy in ("https://ann:hush@proxy", "socks5://ann:hush@proxy", "http://ann:hush@proxy:port"):
        in_file = error_of(kubeconfig(folder, {"token": "one"}, **{"proxy-url": proxy}))
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        in_environment = error_of(kubeconfig(folder, {"token": "one"}))
        assert (in_file.code, 'proxy-url of cluster "hub" in kubeconfig' in in_file.sentence) == (MISUSED, True), proxy
        assert (in_environment.code, in_environment.sentence[:13]) == (MISUSED, "HTTPS_PROXY: "), proxy
        assert "hush" not in in_file.sentence + in_environment.sentence, proxy


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wallet() -> LoginCache:
    return LoginCache.of("a", "b")


def test_what_is_kept_is_private_and_read_back_until_it_is_forgotten(wallet: LoginCache, tmp_path: Path) -> None:
    path = wallet.write(CERTIFICATE, {"a": 1})
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert (wallet.read(CERTIFICATE), list(path.parent.iterdir())) == ({"a": 1}, [path])
    assert LoginCache.of("a", "c").read(CERTIFICATE) == {}
    wallet.write(TOKENS, {})
    assert (wallet.forget(), wallet.forget()) == (True, False)
    LoginCache.of("x").write(TOKENS, {})
    assert forget_all() == 1
    (tmp_path / "file").write_text("")
    check_refusal(CommandError, LoginCache(tmp_path / "file" / "x", "key").write, TOKENS, {}, match="cannot be written")
    cluster = ExecCluster("https://a", b"ca")
    logins = [
        LoginKey(cluster, "jwt/a"),
        LoginKey(cluster, "jwt/b"),
        LoginKey(ExecCluster("https://b", b"ca"), "jwt/a"),
        LoginKey(ExecCluster("https://a", b"cb"), "jwt/a"),
        LoginKey(cluster, "jwt/a", "example.org"),
    ]
    assert len({login.cache("--token-file", "/x").key for login in logins} | {logins[0].cache("--token-file", "/y").key}) == 6
    for text in ("jwt", "jwt/", "serviceaccount/x", "other/x", "", "/x"):
        check_refusal(CommandError, checked_authenticator, text, match="jwt/NAME")


def test_files_open_to_others_links_and_broken_documents_are_ignored(wallet: LoginCache, tmp_path: Path) -> None:
    path = wallet.write(CERTIFICATE, {"a": 1})
    for mode in (0o640, 0o604, 0o666):
        path.chmod(mode)
        assert wallet.read(CERTIFICATE) == {}, oct(mode)
    path.chmod(0o600)
    assert wallet.read(CERTIFICATE) == {"a": 1}
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert wallet.read(CERTIFICATE) == {}
    path.unlink()
    for content in ("", "{", "[]"):
        path.write_text(content)
        path.chmod(0o600)
        assert wallet.read(CERTIFICATE) == {}


def certificate(wallet: LoginCache, left: timedelta, token_hash: str = "") -> None:
    wallet.write(CERTIFICATE, {"chain": "c", "key": "k", "expires": format_time(NOW + left), "token_hash": token_hash})


def test_a_kept_certificate_is_used_until_shortly_before_its_end_and_for_its_own_token_alone(wallet: LoginCache) -> None:
    certificate(wallet, MIN_VALIDITY + timedelta(seconds=1))
    found = present(load_credential(wallet, NOW, None))
    assert (found.chain, found.key) == ("c", "k")
    certificate(wallet, MIN_VALIDITY)
    assert load_credential(wallet, NOW, None) is None
    certificate(wallet, timedelta(minutes=5), sha256(b"one").hexdigest())
    assert load_credential(wallet, NOW, "one") is not None
    assert load_credential(wallet, NOW, "two") is None
    good = {"chain": "c", "key": "k", "expires": format_time(NOW + timedelta(minutes=5))}
    for changed in ({"expires": "soon"}, {"key": None}, {"chain": 5}):
        wallet.write(CERTIFICATE, {**good, **changed})
        assert load_credential(wallet, NOW, None) is None, changed


def test_a_token_is_kept_until_it_ends_and_then_a_login_is_required(wallet: LoginCache) -> None:
    ends = NOW.timestamp() + 3600
    token = SigningKey().sign({"exp": int(ends)})
    assert store_tokens({"id_token": token, "access_token": "other"}, wallet) == token
    source = TokenSource(issuer="https://i", client_id="me")
    assert current_token(source, wallet, ends - 31) == token
    check_refusal(CommandError, current_token, source, wallet, ends - 30, match="hubctl login")
    wallet.write(TOKENS, {"token": "given"})
    assert current_token(TokenSource(is_stored=True), wallet, 0) == "given"
    wallet.forget()
    check_refusal(CommandError, current_token, TokenSource(is_stored=True), wallet, 0, match="hubctl login")
    without_end = ("", "a", "a.b", "a.e30.c", "a.!.c", "a.W10.c", "a.bnVsbA.c")
    assert [expires_at(text) for text in without_end] == [0] * len(without_end)


def test_programs_that_run_together_use_a_refresh_token_once(wallet: LoginCache, monkeypatch: pytest.MonkeyPatch) -> None:
    both, posted, status = threading.Barrier(2), list[Any](), 400
    source, fresh = TokenSource(issuer="https://i", client_id="me"), SigningKey().sign({"exp": int(NOW.timestamp()) + 3600})

    def answered(_opener: object, request: Any, **_timeout: float) -> io.BytesIO:
        if request.data is None:
            return io.BytesIO(b'{"issuer": "https://i", "token_endpoint": "https://i/token"}')
        posted.append(request.data)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other program, if that uses the token too
        if len(posted) > 1:
            raise HTTPError("https://i/token", status, "", Message(), io.BytesIO(b'{"error": "invalid_grant"}'))
        return io.BytesIO(json.dumps({"id_token": fresh}).encode())

    monkeypatch.setattr("urllib.request.OpenerDirector.open", answered)
    wallet.write(TOKENS, {"refresh_token": "one"})
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda _: current_token(source, wallet, NOW.timestamp()), "ab")) == [fresh] * 2
    late = NOW.timestamp() + 3600
    for status, remedy in ((400, ": run `hubctl login` again"), (503, "")):
        check_refusal(CommandError, current_token, source, wallet, late, match=rf"{status}, invalid_grant\){remedy}$")


def test_no_token_stands_in_what_a_kubeconfig_says(tmp_path: Path) -> None:
    source = TokenSource(issuer="https://i", client_id="me", secret_file="/s", flow="client-credentials", scopes=("a", "b"))  # noqa: S106 - a path
    assert source.flags() == (
        *("--oidc-issuer", "https://i", "--oidc-client-id", "me", "--oidc-client-secret-file", "/s"),
        *("--oidc-flow", "client-credentials", "--oidc-scope", "a", "--oidc-scope", "b"),
    )
    assert TokenSource(is_stored=True).flags() == ("--token-kept",)
    path = tmp_path / "token"
    path.write_text("secret\n")
    source = TokenSource(file=str(path))
    assert "secret" not in repr(source.flags())
    assert current_token(source, LoginCache.of("x"), 0) == "secret"
    path.write_text("two words")
    check_refusal(CommandError, current_token, source, LoginCache.of("x"), 0, match="no token")
