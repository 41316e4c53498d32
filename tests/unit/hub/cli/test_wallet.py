"""What hubctl keeps of logins: private, whole, and not believed when others could have had a hand in it."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.cli.exchanging import BEFORE_END, Authenticator, Login, kept
from hub.cli.failures import CommandError
from hub.cli.tokens import Source, current_token, ends_at, keep
from hub.cli.wallet import CERTIFICATE, TOKENS, Wallet, forget_all
from machinery.execcredential import AskedCluster
from machinery.timestamps import format_time
from tests.fakes.identity import SigningKey

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wallet() -> Wallet:
    return Wallet.of("a", "b")


def test_what_is_kept_is_private_and_comes_back(wallet: Wallet) -> None:
    path = wallet.write(CERTIFICATE, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert wallet.read(CERTIFICATE) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]
    assert Wallet.of("a", "c").read(CERTIFICATE) == {}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_reach_is_not_believed(wallet: Wallet, mode: int) -> None:
    wallet.write(CERTIFICATE, {"a": 1}).chmod(mode)
    assert wallet.read(CERTIFICATE) == {}


def test_neither_is_a_link_nor_what_is_no_document(wallet: Wallet, tmp_path: Path) -> None:
    path = wallet.write(CERTIFICATE, {"a": 1})
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert wallet.read(CERTIFICATE) == {}
    path.unlink()
    for content in ("", "{", "[]"):
        path.write_text(content)
        path.chmod(0o600)
        assert wallet.read(CERTIFICATE) == {}


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot be written"):
        Wallet(tmp_path / "file" / "x", "key").write(TOKENS, {})


def test_forgetting_takes_both_files_and_all_takes_everybodys(wallet: Wallet) -> None:
    wallet.write(CERTIFICATE, {})
    wallet.write(TOKENS, {})
    assert wallet.forget()
    assert not wallet.forget()
    Wallet.of("x").write(TOKENS, {})
    assert forget_all() == 1


def certificate(wallet: Wallet, left: timedelta, token_hash: str = "") -> None:
    wallet.write(CERTIFICATE, {"chain": "c", "key": "k", "expires": format_time(NOW + left), "token_hash": token_hash})


def test_a_certificate_is_told_until_shortly_before_its_end(wallet: Wallet) -> None:
    certificate(wallet, BEFORE_END + timedelta(seconds=1))
    found = kept(wallet, NOW, None)
    assert found is not None
    assert (found.chain, found.key) == ("c", "k")
    certificate(wallet, BEFORE_END)
    assert kept(wallet, NOW, None) is None


def test_a_certificate_for_another_token_is_not_told(wallet: Wallet) -> None:
    from hashlib import sha256  # noqa: PLC0415 - the only place

    certificate(wallet, timedelta(minutes=5), sha256(b"one").hexdigest())
    assert kept(wallet, NOW, "one") is not None
    assert kept(wallet, NOW, "two") is None


@pytest.mark.parametrize("changed", [{"expires": "soon"}, {"key": None}, {"chain": 5}], ids=str)
def test_what_is_not_whole_is_not_told(wallet: Wallet, changed: dict[str, object]) -> None:
    good = {"chain": "c", "key": "k", "expires": format_time(NOW + timedelta(minutes=5))}
    wallet.write(CERTIFICATE, {**good, **changed})
    assert kept(wallet, NOW, None) is None


def test_a_login_is_kept_by_all_that_it_depends_on() -> None:
    cluster = AskedCluster("https://a", b"ca")
    logins = [
        Login(cluster, Authenticator("jwt", "a")),
        Login(cluster, Authenticator("jwt", "b")),
        Login(AskedCluster("https://b", b"ca"), Authenticator("jwt", "a")),
        Login(AskedCluster("https://a", b"cb"), Authenticator("jwt", "a")),
        Login(cluster, Authenticator("jwt", "a"), "example.org"),
    ]
    assert len({login.wallet("--token-file", "/x").key for login in logins} | {logins[0].wallet("--token-file", "/y").key}) == 6


@pytest.mark.parametrize("text", ["jwt", "jwt/", "serviceaccount/x", "other/x", "", "/x"])
def test_what_is_no_authenticator_is_told_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(CommandError, match="jwt/NAME"):
        Authenticator.parse(text)


def test_a_token_of_an_issuer_is_kept_until_it_ends_and_then_a_person_is_asked_for(wallet: Wallet) -> None:
    ends = NOW.timestamp() + 3600
    token = SigningKey().sign({"exp": int(ends)})
    assert keep({"id_token": token, "access_token": "other"}, wallet) == token
    source = Source(issuer="https://i", client_id="me")
    assert current_token(source, wallet, ends - 31) == token
    with pytest.raises(CommandError, match="hubctl login"):
        current_token(source, wallet, ends - 30)


def test_a_token_that_was_given_and_is_gone_is_said_so(wallet: Wallet) -> None:
    wallet.write(TOKENS, {"token": "given"})
    assert current_token(Source(kept=True), wallet, 0) == "given"
    wallet.forget()
    with pytest.raises(CommandError, match="hubctl login"):
        current_token(Source(kept=True), wallet, 0)


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.e30.c", "a.!.c", "a.W10.c", "a.bnVsbA.c"])
def test_a_token_that_does_not_say_when_it_ends_says_zero(token: str) -> None:
    assert ends_at(token) == 0


def test_no_token_stands_in_what_a_kubeconfig_says(tmp_path: Path) -> None:
    source = Source(issuer="https://i", client_id="me", secret_file="/s", flow="client-credentials", scopes=("a", "b"))  # noqa: S106 - a path
    assert source.flags() == (
        *("--oidc-issuer", "https://i", "--oidc-client-id", "me", "--oidc-client-secret-file", "/s"),
        *("--oidc-flow", "client-credentials", "--oidc-scope", "a", "--oidc-scope", "b"),
    )
    assert Source(kept=True).flags() == ("--token-kept",)
    path = tmp_path / "token"
    path.write_text("secret\n")
    source = Source(file=str(path))
    assert "secret" not in repr(source.flags())
    assert current_token(source, Wallet.of("x"), 0) == "secret"
    path.write_text("two words")
    with pytest.raises(CommandError, match="no token"):
        current_token(source, Wallet.of("x"), 0)
