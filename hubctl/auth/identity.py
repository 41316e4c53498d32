"""The identity of hubctl at the hub: the user of a kubeconfig, whose credential is read again after expiry or refusal.

The rules are those of client-go. A certificate and a token are sent together. `tokenFile` takes precedence over `token`, which
is used only until the file was read once. A plug-in runs only if the kubeconfig has neither certificate nor token, and again
when its credential has expired. The user sees the standard error of a plug-in; its standard output is parsed and never shown.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from hubctl.errors import CommandError, ConnectionLostError, UsageError
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
from machinery.client.kubeconfig_documents import Impersonation
from machinery.errors import InvalidError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock

REISSUE_ADVICE = (
    "Create a new one (`kubectl create token NAME` for a ServiceAccount of the hub). Exchange a token of another issuer first: "
    "`hubctl login`"
)


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """The credentials of one connection. `credential` None: no certificate. `token` empty: no token."""

    credential: Credential | None = None
    token: str = field(default="", repr=False)


class UserIdentity:
    """A user whose credential is in the kubeconfig itself.

    `description`: name of the credential in messages; `advice`: what to do if the hub rejects the credential.
    """

    def __init__(self, found: Kubeconfig) -> None:
        self._found = found
        self._inline = found.token.text if found.token is not None else ""
        self.description = "its token" if self._inline else "its client certificate" if found.credential else "nothing"
        fresh = "The hub writes a new admin.kubeconfig into its data directory when it starts"
        self.advice = REISSUE_ADVICE if self._inline else fresh

    def current(self) -> RequestCredentials:
        """Return the present credentials. Raises CommandError."""
        where = f'the token of user "{self._found.user}" of kubeconfig {self._found.source}'
        return RequestCredentials(self._found.credential, checked(self._inline, where) if self._inline else "")

    def renewed(self, refused: RequestCredentials) -> bool:
        """Return whether `current` has another credential than the one that the hub refused. Raises CommandError."""
        return self.current() != refused


class TokenFileIdentity(UserIdentity):
    """A user whose token is in a file that another program renews. The file is read for each connection.

    While the file is unreadable, the last token stays in use.
    """

    def __init__(self, found: Kubeconfig, path: Path) -> None:
        super().__init__(found)
        self._path = path
        self._token = ""
        self.description = f"the token in {path}"
        self.advice = f"The program that renews {path} has not done so. {REISSUE_ADVICE}"

    def current(self) -> RequestCredentials:
        where = f'{self._path}, the tokenFile of user "{self._found.user}" of kubeconfig {self._found.source},'
        known = bool(self._token or self._inline)
        try:
            self._token = checked(self._path.read_text("utf-8").strip(), where)
        except (OSError, UnicodeDecodeError) as error:
            if not known:
                why = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
                raise UsageError(f"{where} cannot be read: {why}") from None
        except CommandError:
            if not known:  # otherwise the file may just be incomplete, and the last token is used
                raise
        return RequestCredentials(self._found.credential, self._token) if self._token else super().current()


class PluginIdentity(UserIdentity):
    """A user whose credential comes from a plug-in. The plug-in runs at the first use, after expiry, and after a refusal."""

    def __init__(self, found: Kubeconfig, plugin: ExecUser, *, prompts: bool) -> None:
        super().__init__(found)
        self._plugin = plugin
        self._prompts = prompts
        self._credential: ExecCredential | None = None
        self._has_worked = False
        self.description = f"the credential from the plug-in {plugin.command}"
        self.advice = f"Log in again where {plugin.command} gets its credentials"

    def current(self) -> RequestCredentials:
        found = self._credential
        if found is None or (found.expires and parse_time(found.expires) <= SystemClock().now()):
            found = self._credential = self._run()
        where = f"the token from the plug-in {self._plugin.command} of kubeconfig {self._found.source}"
        credential = Credential(found.chain.encode(), found.key.encode()) if found.chain else None
        return RequestCredentials(credential, checked(found.token, where) if found.token else "")

    def renewed(self, refused: RequestCredentials) -> bool:
        if self.current() == refused:
            self._credential, self._has_worked = None, False
        return True

    def _run(self) -> ExecCredential:
        """Return the plug-in's credential. After a first success, a failure may be temporary: raises ConnectionLostError."""
        try:
            found = run_plugin(self._found, self._plugin, prompts=self._prompts)
        except CommandError as error:
            if self._has_worked:
                raise ConnectionLostError(error.sentence) from None
            raise
        self._has_worked = True
        return found


def identity_of(found: Kubeconfig, *, prompts: bool = True) -> UserIdentity:
    """Return the UserIdentity of a kubeconfig. `prompts`: see `run_plugin`. Raises CommandError if it is unsupported."""
    if found.unusable:
        raise UsageError(f'user "{found.user}" of kubeconfig {found.source} {found.unusable}')
    token = found.token or BearerToken()
    if token.file is not None:
        return TokenFileIdentity(found, token.file)
    if found.plugin is not None and found.credential is None and not token.text:
        return PluginIdentity(found, found.plugin, prompts=prompts)
    identity = UserIdentity(found)
    identity.current()
    return identity


def impersonation_headers(chosen: Impersonation) -> list[tuple[str, bytes]]:
    """Return the headers for impersonation. Raises CommandError for an identity that headers cannot express."""
    if not chosen.user and (chosen.groups or chosen.uid or chosen.extra):
        raise UsageError("a group, a UID and extra fields are acted as only together with a user: give --as USER")
    named = (("User", chosen.user), ("Uid", chosen.uid))
    extra = ((f"Extra-{quote(key, safe='')}", value) for key, values in chosen.extra.items() for value in values)
    found = [*(each for each in named if each[1]), *(("Group", group) for group in chosen.groups), *extra]
    if not all(value and value.isprintable() for _, value in found):
        raise UsageError("a name to act as is empty, or has characters that are not printable")
    return [(f"Impersonate-{name}", value.encode()) for name, value in found]


def checked(token: str, where: str) -> str:
    """Return `token`. Raises CommandError if a header cannot contain it; the message names `where` and no part of the token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{where} is not a token: it is empty, or contains spaces or characters that are not printable ASCII")
    return token


PLUGIN_TIMEOUT, COMPLETION_TIMEOUT = 300.0, 2.0
"""Seconds to wait for a plug-in: in a command, where the user may log in with a browser; in shell completion."""


def exec_cluster(entry: ClusterEntry) -> ExecCluster:
    """Return the cluster of a kubeconfig in the form that plug-ins get."""
    return ExecCluster(entry.server, entry.certificate_authority, entry.proxy_url, entry.tls_server_name)


def run_plugin(found: Kubeconfig, plugin: ExecUser, *, prompts: bool = True) -> ExecCredential:
    """Run the plug-in of a kubeconfig's user. Return its credential. Raises CommandError, without output of the plug-in.

    `prompts`: the plug-in may print messages and ask the user. A command with a path is relative to the kubeconfig's folder; a
    command without a path is searched in the PATH.
    """
    import shutil  # noqa: PLC0415 - most kubeconfigs have no plug-in
    import subprocess  # noqa: PLC0415 - likewise

    called = f"the plug-in {plugin.command} of kubeconfig {found.source}"
    at_terminal = prompts and sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive is Interactive.ALWAYS and not at_terminal:
        raise CommandError(f"{called} needs a terminal (interactiveMode: Always), and the standard input is not a terminal")
    interactive = at_terminal and plugin.interactive is not Interactive.NEVER
    cluster = exec_cluster(found.cluster) if plugin.provides_cluster else None
    request = exec_info(cluster, api_version=plugin.api_version, interactive=interactive, config=plugin.cluster_config)
    is_relative = os.sep in plugin.command and not Path(plugin.command).is_absolute()
    path = shutil.which(str(Path(found.source).absolute().parent / plugin.command) if is_relative else plugin.command)
    if path is None:  # only then client-go shows the hint too
        hint = " ".join("".join(each if each.isprintable() else " " for each in plugin.install_hint).split())
        raise UsageError(f"{called} cannot be found: {hint or 'install it, or put it on the PATH'}")
    timeout = PLUGIN_TIMEOUT if prompts else COMPLETION_TIMEOUT
    try:
        done = subprocess.run(  # noqa: S603 - the user's kubeconfig names the program
            [path, *plugin.arguments],
            env={**os.environ, **plugin.environment, EXEC_INFO: request},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if prompts else subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"{called} did not finish within {timeout:g} s") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "invalid arguments or environment"
        raise UsageError(f"{called} cannot be run ({why})") from None
    if done.returncode != 0:
        raise CommandError(f"{called} failed with exit code {done.returncode}: its messages are above")
    try:
        return read_credential(done.stdout.decode(errors="replace"), plugin.api_version)
    except InvalidError as error:
        raise CommandError(f"{called} cannot be used: {error.message}") from None
