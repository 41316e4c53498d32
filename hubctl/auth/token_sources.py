"""Tokens and certificates of logins: the source of a token, and the cache between runs.

A kubeconfig contains names of files and options, but no token. The cache consists of files in the user's cache folder. They
have the mode 0600, their folders 0700, and they are written atomically. A file that other users could read or write is ignored.
"""

import fcntl
import json
import os
import sys
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubctl.errors import CommandError, UsageError
from hubctl.files import private_file
from hubctl.options import with_options
from machinery.product import NAME
from machinery.runtime.directory import PRIVATE_DIRECTORY, PRIVATE_FILE

if TYPE_CHECKING:
    from hubctl.auth.oidc import OidcIssuer

CERTIFICATE, TOKENS = "certificate", "tokens"
_OTHER_USERS = 0o077


def login_folder() -> Path:
    """Return the folder of the cache: `muster/logins` in `$XDG_CACHE_HOME`, by default in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / NAME / "logins"


@dataclass(frozen=True, slots=True)
class LoginCache:
    """The cached files of one login. `key` is a hash of everything that determines the login."""

    folder: Path
    key: str

    @classmethod
    def of(cls, *parts: str) -> "LoginCache":
        return cls(login_folder(), sha256(json.dumps(parts).encode()).hexdigest()[:32])

    def _path(self, part: str) -> Path:
        return self.folder / f"{self.key}.{part}.json"

    def read(self, part: str) -> Mapping[str, Any]:
        """Return the stored document `part`; empty if there is none, or other users could read or write its file."""
        with suppress(OSError, ValueError):
            descriptor = os.open(self._path(part), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not status.st_mode & _OTHER_USERS and status.st_uid == os.geteuid():
                    document = json.load(file)
                    return document if isinstance(document, dict) else {}
        return {}

    def write(self, part: str, document: Mapping[str, Any]) -> Path:
        """Store `document` as `part` of the login. Return the path of its file. Raises CommandError."""
        path = self._path(part)
        try:
            self.folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
        with private_file(path) as file:
            file.write(json.dumps(document).encode())
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that holds the lock of this login. Threads and processes wait for each other. Raises OSError."""
        self.folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / f"{self.key}.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def forget(self) -> bool:
        """Delete the certificate and the tokens of this login. Return whether any were stored. Raises OSError."""
        with self.locked():  # a refresh in progress would store tokens after the deletion
            return forget_all(f"{self.key}.*.json") > 0


def forget_all(pattern: str = "*.json") -> int:
    found = list(login_folder().glob(pattern))
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


BROWSER, PROGRAM = "browser", "client-credentials"
MAX_TOKEN = 64 * 1024
MIN_VALIDITY_SECONDS = 30
"""A token that expires within this many seconds is not used."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The source of a token: a file that another program renews, the cache (`hubctl login` stored it), or an OIDC issuer."""

    file: str | None = None
    is_stored: bool = False
    issuer: str | None = None
    client_id: str | None = None
    secret_file: str | None = None
    ca_file: str | None = None
    flow: str = BROWSER
    scopes: tuple[str, ...] = ()

    def flags(self) -> tuple[str, ...]:
        """Return the command line options that specify this source."""
        named = {
            "--token-file": self.file,
            "--oidc-issuer": self.issuer,
            "--oidc-client-id": self.client_id,
            "--oidc-client-secret-file": self.secret_file,
            "--oidc-ca": self.ca_file,
            "--oidc-flow": self.flow if self.issuer else None,
        }
        flags = tuple(part for name, value in named.items() if value for part in (name, value))
        scopes = tuple(part for scope in self.scopes for part in ("--oidc-scope", scope))
        return (*flags, *scopes, *(("--token-kept",) if self.is_stored else ()))


source_options = with_options(
    click.option("--token-file", metavar="FILE", help="File with the token. It is read again for each certificate."),
    click.option("--oidc-issuer", metavar="URL", help="OpenID Connect issuer that issues the token."),
    click.option("--oidc-client-id", metavar="ID", help="Client id of hubctl at the issuer."),
    click.option("--oidc-client-secret-file", metavar="FILE", help="File with the client secret."),
    click.option("--oidc-ca", metavar="FILE", help="CA of the issuer (PEM). Default: the CAs that this machine trusts."),
    click.option(
        "--oidc-flow",
        type=click.Choice((BROWSER, PROGRAM)),
        default=BROWSER,
        show_default=True,
        help="Flow: log in with a browser, or with the client's own credentials.",
    ),
    click.option(
        "--oidc-scope",
        "oidc_scopes",
        multiple=True,
        metavar="SCOPE",
        help="Scope to request in addition to openid. May be repeated.",
    ),
)
"""Adds the options that specify a TokenSource."""


def source_of(chosen: Mapping[str, Any], *, is_stored: bool = False) -> TokenSource:
    """Return the token source that the options specify. Raises CommandError unless there is exactly one."""
    file, issuer = chosen["token_file"], chosen["oidc_issuer"]
    if sum((bool(file), bool(issuer), is_stored)) != 1:
        raise UsageError("choose one source of the token: --token-file, --token-stdin or --oidc-issuer")
    if issuer and not chosen["oidc_client_id"]:
        raise UsageError("--oidc-issuer needs --oidc-client-id")
    if not issuer:
        return TokenSource(file=_absolute(file), is_stored=is_stored)
    return TokenSource(
        issuer=issuer,
        client_id=chosen["oidc_client_id"],
        secret_file=_absolute(chosen["oidc_client_secret_file"]),
        ca_file=_absolute(chosen["oidc_ca"]),
        flow=chosen["oidc_flow"],
        scopes=tuple(chosen["oidc_scopes"]),
    )


def _absolute(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else None


def current_token(source: TokenSource, cache: LoginCache, now: float) -> str:
    """Return a token to exchange, without interaction. `now`: seconds since 1970. Raises OSError and CommandError."""
    if source.file is not None:
        return read_token_file(Path(source.file))
    if source.issuer is None:
        token = cache.read(TOKENS).get("token")
        if not isinstance(token, str) or not token:
            raise CommandError("no token is stored for this login: run `hubctl login` again with a new one")
        return token
    with cache.locked():  # an issuer may end the login if a refresh token is used twice
        stored = cache.read(TOKENS)
        if isinstance(token := stored.get("token"), str) and float(stored.get("ends") or 0) > now + MIN_VALIDITY_SECONDS:
            return token
        if source.flow == PROGRAM:
            return store_tokens(_issuer(source).by_client_credentials(), cache)
        if isinstance(refresh := stored.get("refresh_token"), str):
            return store_tokens(_issuer(source).by_refresh(refresh), cache)
    raise CommandError("the login at the issuer has ended: run `hubctl login` again")


def new_token(source: TokenSource, cache: LoginCache, show: Callable[[str], None], *, browser: bool) -> str:
    """Return a token for `hubctl login`. `show` gets the login's URL. `browser`: also open the URL. Raises CommandError."""
    if source.issuer is None:
        return current_token(source, cache, 0.0)
    issuer = _issuer(source)
    answer = issuer.by_client_credentials() if source.flow == PROGRAM else issuer.by_browser(show, browser=browser)
    return store_tokens(answer, cache)


def _issuer(source: TokenSource) -> "OidcIssuer":
    from hubctl.auth.oidc import OidcIssuer  # noqa: PLC0415 - only for such logins

    names = source.issuer or "", source.client_id or ""
    return OidcIssuer(*names, source.scopes, secret_file=source.secret_file, ca_file=source.ca_file)


def store_tokens(answer: Mapping[str, Any], cache: LoginCache) -> str:
    """Store the token of an issuer's answer, the token's expiry and the refresh token in `cache`. Return the token."""
    token = str(answer.get("id_token") or answer["access_token"])
    refresh = answer.get("refresh_token")
    renewed = {"refresh_token": refresh} if isinstance(refresh, str) else {}
    cache.write(TOKENS, {"token": token, "ends": expires_at(token), **renewed})
    return token


def expires_at(token: str) -> float:
    """Return the expiry of a JSON web token in seconds since 1970; 0: the token has no readable expiry."""
    try:
        body = token.split(".")[1]
        ends = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
    except (IndexError, KeyError, TypeError, ValueError):
        return 0.0
    return float(ends) if isinstance(ends, int | float) else 0.0


def read_token_file(path: Path) -> str:
    """Read a token from a file. Raises CommandError."""
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
        raise CommandError(f"the token in {path} cannot be read: {why}") from None
    return _checked(text, str(path))


def read_token() -> str:
    """Read the token from standard input. Raises CommandError."""
    if os.isatty(sys.stdin.fileno()):
        click.echo("the token, and Ctrl-D:", err=True)
    return _checked(sys.stdin.read(MAX_TOKEN + 1).strip(), "the standard input")


def _checked(token: str, where: str) -> str:
    if not token:
        raise CommandError(f"{where} contains no token")
    if len(token) > MAX_TOKEN or any(character.isspace() for character in token):
        raise CommandError(f"{where} contains no token: it has spaces, or is longer than {MAX_TOKEN // 1024} KiB")
    return token
