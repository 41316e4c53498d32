"""The identity of hubctl at the hub, from a kubeconfig's user; renewed after expiry or refusal.

As in client-go: certificate and token are used together; `tokenFile` has precedence over `token`, which is used until the file
has been read once; a plug-in runs only if the kubeconfig has neither, and again when its credential has expired. A plug-in
writes messages to standard error, which the user sees; its standard output is parsed and never shown.
"""

import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from hubctl.errors import CommandError, ConnectionLostError
from machinery.client.exec_credential import (
    EXEC_INFO,
    ExecCluster,
    ExecCredential,
    ExecUser,
    Interactive,
    exec_info,
    read_credential,
)
from machinery.client.kubeconfig import BearerToken, ClusterEntry, Credential, Kubeconfig
from machinery.errors import InvalidError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock

REISSUE_ADVICE = (
    "Have a new one made (`kubectl create token NAME` for a ServiceAccount of the hub); a token of others, such as an OpenID "
    "Connect issuer's, is exchanged first: `hubctl login`"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The credential of one connection. None or empty: nothing of that kind."""

    credential: Credential | None = None
    token: str = field(default="", repr=False)


class UserIdentity(ABC):
    """A kubeconfig's user. `called` describes its credential in messages; `remedy` is the advice when the hub rejects it."""

    called: str
    remedy: str

    @abstractmethod
    def shown(self) -> Shown:
        """The present credential. Raises CommandError."""

    def renewed(self, refused: Shown) -> bool:
        """Whether there is another credential than the refused one. Raises CommandError."""
        return self.shown() != refused


class KubeconfigIdentity(UserIdentity):
    """The credential in the kubeconfig itself."""

    def __init__(self, found: Kubeconfig) -> None:
        text = found.token.text if found.token is not None else ""
        where = f'user "{found.user}" of kubeconfig {found.source}'
        self._shown = Shown(found.credential, checked(text, f"the token of {where}") if text else "")
        self.called = "its token" if text else "its client certificate" if found.credential else "nothing"
        fresh = "The hub writes a fresh admin.kubeconfig into its data directory when it starts"
        self.remedy = REISSUE_ADVICE if text else fresh

    def shown(self) -> Shown:
        return self._shown


class TokenFileIdentity(UserIdentity):
    """A token in a file that others renew, read for each connection. The last one stays in use while the file is unreadable."""

    def __init__(self, found: Kubeconfig, path: Path, text: str) -> None:
        self._credential = found.credential
        self._path = path
        self._token = ""
        self._inline = text
        self._inline_is = f'the token of user "{found.user}" of kubeconfig {found.source}'
        self._where = f'{path}, the tokenFile of user "{found.user}" of kubeconfig {found.source},'
        self.called = f"the token in {path}"
        self.remedy = f"Whoever keeps {path} has not renewed it. {REISSUE_ADVICE}"

    def shown(self) -> Shown:
        try:
            self._token = checked(self._path.read_text("utf-8").strip(), self._where)
        except (OSError, UnicodeDecodeError) as error:
            if not self._known:
                why = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
                raise CommandError(f"{self._where} cannot be read: {why}", code=2) from None
        except CommandError:
            if not self._known:  # it may be incomplete at this moment
                raise
        return Shown(self._credential, self._token or checked(self._inline, self._inline_is))

    @property
    def _known(self) -> bool:
        return bool(self._token or self._inline)


class PluginIdentity(UserIdentity):
    """The credential of a plug-in, which runs at first use, after expiry, and once more after a refusal by the hub."""

    def __init__(self, found: Kubeconfig, plugin: ExecUser, *, unseen: bool) -> None:
        self._found = found
        self._plugin = plugin
        self._unseen = unseen
        self._told: ExecCredential | None = None
        self._was_good = False
        self.called = f"the credential that the plug-in {plugin.command} told"
        self.remedy = f"Log in anew where {plugin.command} has its credentials from"

    def shown(self) -> Shown:
        told = self._told = self._asked() if self._told is None or _is_over(self._told) else self._told
        where = f"the token that the plug-in {self._plugin.command} of kubeconfig {self._found.source} told"
        credential = Credential(told.chain.encode(), told.key.encode()) if told.chain else None
        return Shown(credential, checked(told.token, where) if told.token else "")

    def renewed(self, refused: Shown) -> bool:
        if self.shown() == refused:
            self._told, self._was_good = None, False
        return True

    def _asked(self) -> ExecCredential:
        """A plug-in that has worked may fail temporarily, for example when the server that it uses is unreachable."""
        try:
            told = ask_plugin(self._found, self._plugin, unseen=self._unseen)
        except CommandError as error:
            if self._was_good:
                raise ConnectionLostError(error.sentence) from None
            raise
        self._was_good = True
        return told


def identity_of(found: Kubeconfig, *, unseen: bool = False) -> UserIdentity:
    """The user of a kubeconfig. Raises CommandError for one that hubctl does not support."""
    if found.unusable:
        raise CommandError(f'user "{found.user}" of kubeconfig {found.source} {found.unusable}', code=2)
    token = found.token or BearerToken()
    if token.file is not None:
        return TokenFileIdentity(found, token.file, token.text)
    if found.plugin is not None and found.credential is None and not token.text:
        return PluginIdentity(found, found.plugin, unseen=unseen)
    return KubeconfigIdentity(found)


def checked(token: str, where: str) -> str:
    """The token, if it is valid in a request header. Raises CommandError without any part of the token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CommandError(f"{where} is no token: it is empty, or has spaces or other signs in it", code=2)
    return token


def _is_over(told: ExecCredential) -> bool:
    return bool(told.expires) and parse_time(told.expires) <= SystemClock().now()


PATIENCE, UNSEEN_PATIENCE = 300.0, 2.0
"""Time-outs in seconds; the first allows for a login in a browser, the second is for shell completion."""


def ask_plugin(found: Kubeconfig, plugin: ExecUser, *, unseen: bool = False) -> ExecCredential:
    """Run the plug-in of a kubeconfig's user; return its credential. Raises CommandError without any of its output.

    `unseen`: without messages and prompts.
    """
    called = f"the plug-in {plugin.command} of kubeconfig {found.source}"
    interactive = _is_interactive(plugin, called, unseen=unseen)
    cluster = exec_cluster(found.cluster) if plugin.provides_cluster else None
    request = exec_info(cluster, api_version=plugin.api_version, interactive=interactive, config=plugin.cluster_config)
    text = _run(plugin, _program(plugin, called, found.source), request, called, interactive=interactive, unseen=unseen)
    try:
        return read_credential(text, plugin.api_version)
    except InvalidError as error:
        raise CommandError(f"{called} cannot be used: {error.message}") from None


def exec_cluster(entry: ClusterEntry) -> ExecCluster:
    """The cluster of a kubeconfig, as plug-ins get it."""
    return ExecCluster(entry.server, entry.certificate_authority, entry.proxy_url, entry.tls_server_name)


def _is_interactive(plugin: ExecUser, called: str, *, unseen: bool) -> bool:
    """Whether it gets the terminal. Raises CommandError when it needs one and there is none."""
    at_terminal = not unseen and sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive is Interactive.ALWAYS and not at_terminal:
        raise CommandError(f"{called} asks a person (interactiveMode: Always), and the standard input is no terminal")
    return at_terminal and plugin.interactive is not Interactive.NEVER


def _program(plugin: ExecUser, called: str, source: str) -> str:
    """Its path. A command with a folder is relative to the kubeconfig's folder; any other is searched on the PATH."""
    import shutil  # noqa: PLC0415 - most kubeconfigs have no plug-in

    command = plugin.command
    if os.sep in command and not Path(command).is_absolute():
        command = str(Path(source).absolute().parent / command)
    path = shutil.which(command)
    if path is None:
        hint = f": {_plain(plugin.install_hint)}" if plugin.install_hint else ": install it, or put it on the PATH"
        raise CommandError(f"{called} is not there{hint}", code=2)
    return path


def _run(plugin: ExecUser, path: str, request: str, called: str, *, interactive: bool, unseen: bool) -> str:
    import subprocess  # noqa: PLC0415 - as above

    patience = UNSEEN_PATIENCE if unseen else PATIENCE
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user's kubeconfig names
            [path, *plugin.arguments],
            env={**os.environ, **plugin.environment, EXEC_INFO: request},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if unseen else None,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"{called} is not done within {patience:g} s") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "its arguments or its env"
        raise CommandError(f"{called} cannot be run ({why})", code=2) from None
    if done.returncode != 0:
        hint = f": {_plain(plugin.install_hint)}" if plugin.install_hint else ": what it says of that stands above"
        raise CommandError(f"{called} failed with exit code {done.returncode}{hint}")
    return done.stdout.decode(errors="replace")


def _plain(text: str) -> str:
    """The text on one line, without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
