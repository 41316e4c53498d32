"""As whom hubctl speaks to the hub: what a kubeconfig's user shows, read or told anew once it is over or refused.

As client-go has it: a certificate and a token are shown together; `tokenFile` counts before `token`, which stands in until the
file was read once; a plug-in is asked only where the kubeconfig itself has neither, and again once what it told is over.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from hubctl.errors import CommandError, ConnectionLostError
from machinery.client.exec_credential import ExecUser, ToldCredential
from machinery.client.kubeconfig import BearerToken, Credential, Kubeconfig
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock

ANEW = (
    "Have a new one made (`kubectl create token NAME` for a ServiceAccount of the hub); a token of others, such as an OpenID "
    "Connect issuer's, is exchanged first: `hubctl login`"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What one connection shows. None, "": nothing of that kind."""

    credential: Credential | None = None
    token: str = field(default="", repr=False)


class UserIdentity(ABC):
    """A kubeconfig's user. What it shows is `called` before people, and `remedy` says what to do when the hub knows it not."""

    called: str
    remedy: str

    @abstractmethod
    def shown(self) -> Shown:
        """What is to be shown now. Raises CommandError."""

    def renewed(self, refused: Shown) -> bool:
        """Whether there is another thing to show than what was refused. Raises CommandError."""
        return self.shown() != refused


class KubeconfigIdentity(UserIdentity):
    """What stands in the kubeconfig itself."""

    def __init__(self, found: Kubeconfig) -> None:
        text = found.token.text if found.token is not None else ""
        where = f'user "{found.user}" of kubeconfig {found.source}'
        self._shown = Shown(found.credential, checked(text, f"the token of {where}") if text else "")
        self.called = "its token" if text else "its client certificate" if found.credential else "nothing"
        fresh = "The hub writes a fresh admin.kubeconfig into its data directory when it starts"
        self.remedy = ANEW if text else fresh

    def shown(self) -> Shown:
        return self._shown


class InFile(UserIdentity):
    """A token in a file that others renew, which is read at each connection; the last one counts while it cannot be read."""

    def __init__(self, found: Kubeconfig, path: Path, text: str) -> None:
        self._credential = found.credential
        self._path = path
        self._token = ""
        self._inline = text
        self._inline_is = f'the token of user "{found.user}" of kubeconfig {found.source}'
        self._where = f'{path}, the tokenFile of user "{found.user}" of kubeconfig {found.source},'
        self.called = f"the token in {path}"
        self.remedy = f"Whoever keeps {path} has not renewed it. {ANEW}"

    def shown(self) -> Shown:
        try:
            self._token = checked(self._path.read_text("utf-8").strip(), self._where)
        except (OSError, UnicodeDecodeError) as error:
            if not self._known:
                why = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
                raise CommandError(f"{self._where} cannot be read: {why}", code=2) from None
        except CommandError:
            if not self._known:  # it may be half written just now
                raise
        return Shown(self._credential, self._token or checked(self._inline, self._inline_is))

    @property
    def _known(self) -> bool:
        return bool(self._token or self._inline)


class PluginIdentity(UserIdentity):
    """What a plug-in tells; asked when it is first needed, once it is over, and once more after the hub has refused it."""

    def __init__(self, found: Kubeconfig, plugin: ExecUser, *, unseen: bool) -> None:
        self._found = found
        self._plugin = plugin
        self._unseen = unseen
        self._told: ToldCredential | None = None
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

    def _asked(self) -> ToldCredential:
        """One that told something that was good may fail for a moment, as when the hub that it asks is away itself."""
        from hubctl.auth.exec_plugins import ask_plugin  # noqa: PLC0415 - most kubeconfigs have none

        try:
            told = ask_plugin(self._found, self._plugin, unseen=self._unseen)
        except CommandError as error:
            if self._was_good:
                raise ConnectionLostError(error.sentence) from None
            raise
        self._was_good = True
        return told


def identity_of(found: Kubeconfig, *, unseen: bool = False) -> UserIdentity:
    """The user of a kubeconfig. Raises CommandError for one that hubctl cannot be."""
    if found.unusable:
        raise CommandError(f'user "{found.user}" of kubeconfig {found.source} {found.unusable}', code=2)
    token = found.token or BearerToken()
    if token.file is not None:
        return InFile(found, token.file, token.text)
    if found.plugin is not None and found.credential is None and not token.text:
        return PluginIdentity(found, found.plugin, unseen=unseen)
    return KubeconfigIdentity(found)


def checked(token: str, where: str) -> str:
    """The token, where it can stand in a request. Raises CommandError, which holds nothing of it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CommandError(f"{where} is no token: it is empty, or has spaces or other signs in it", code=2)
    return token


def _is_over(told: ToldCredential) -> bool:
    return bool(told.expires) and parse_time(told.expires) <= SystemClock().now()
