"""hubctl console: the hub's console in a browser on this machine."""

import json
import os
import secrets
import sys
import tempfile
import webbrowser
from contextlib import ExitStack
from html import escape
from pathlib import Path
from threading import Thread

import click

from hubctl.client.connection import connected
from hubctl.client.console_proxy import ADDRESS, CONSOLE, ConsoleProxy
from hubctl.client.http import ApiClient
from hubctl.errors import CommandError

MODES = {"on": "", "read-only": ", read-only"}
MAX_CONFIG = 64 * 1024


@click.command("console")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help=f"Port to listen on, at {ADDRESS}."
)
@click.option("--open/--no-open", "opens", default=None, help="Open the browser. Default: on a terminal with a display.")
@connected
def console(client: ApiClient, port: int, *, opens: bool | None) -> None:
    """Open the hub's console in a browser, with the credential of the kubeconfig, until Ctrl-C.

    The command prints a URL of this machine and forwards the browser's requests to the hub, as `kubectl proxy` does. The
    console has the rights and the audit records of the kubeconfig's user (`hubctl whoami`), or of the user of --as.

    The URL contains a new secret: everybody on this machine who knows the URL can act as this user until the command ends. The
    command refuses requests without the secret, under another host name, or from pages of another origin. It does not forward
    credentials and cookies of the browser.

    The hub serves the console if its setting `console` is on or read-only. With read-only the hub refuses every write of
    the console; `hubctl` and `kubectl` are not affected.

    To use a remote machine, forward the port under the same number: `ssh -L 9000:127.0.0.1:9000 HOST`.

    \b
    Examples:
      hubctl console
      hubctl console --port 9000 --no-open
      hubctl --context paris console
      hubctl console --as ann
    """
    mode = read_mode(client)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(ConsoleProxy(client, port, secrets.token_urlsafe(24)))
        except OSError as error:
            raise CommandError(f"cannot listen on {ADDRESS}:{port} ({error.strerror}): choose another --port") from None
        click.echo(f"The console{mode} is at this URL until Ctrl-C. Keep the URL secret.", err=True)
        click.echo(server.url)
        if sys.stdout.isatty() and can_open_browser() if opens is None else opens:
            open_browser(server.url, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubctl-"))))
        server.serve_forever()


def read_mode(client: ApiClient) -> str:
    """Return the mode of the hub's console as a text for messages. Raises CommandError if the hub has no console."""
    with client.forward("GET", f"{CONSOLE}config.json", {}) as (response, _):
        try:
            content = response.read(MAX_CONFIG) if response.status == 200 else b""  # noqa: PLR2004 - OK
            return MODES[json.loads(content)["mode"]]
        except (OSError, ValueError, KeyError, TypeError):
            raise CommandError("this hub has no console: start it with --console=on, or --console=read-only") from None


def can_open_browser() -> bool:
    """Whether there is a display for a browser. Without a display, `webbrowser` would start a browser in the terminal."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def open_browser(url: str, folder: Path) -> None:
    """Open the URL through a file that only this user can read, because all users can read the browser's arguments."""
    page = folder / "console.html"
    page.touch(mode=0o600)
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}"><title>Console</title>')
    Thread(target=webbrowser.open, args=(page.as_uri(),), name="browser", daemon=True).start()
