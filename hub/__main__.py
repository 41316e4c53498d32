"""The program `hub`: `hub serve` runs a hub, and the other commands maintain it."""

import machinery.startup_imports  # isort: skip

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from machinery.errors import MusterError
from machinery.product import TITLE, version
from machinery.runtime.closed_pipe import ignore_closed_pipe

machinery.startup_imports.require_extra("hub")
machinery.startup_imports.load_http_client()

from hub.extensions.settings import Settings, load  # noqa: E402 - needs the extra
from hub.settings import ENVIRONMENT_PREFIX  # noqa: E402 - the same

NO_FLAGS = frozenset({"database_url"})
"""Settings without a flag: they may hold a password, and every user can read a process's command line."""
METAVARS = {"timedelta": "DURATION", "Address": "HOST:PORT", "PosixPath": "DIRECTORY"}
"""Placeholders that the help shows for the values of options, by the type of the setting's default."""

EPILOG = f"""
Every flag is also an environment variable ({ENVIRONMENT_PREFIX}GRPC_LISTEN for --grpc-listen) and a key of the YAML file of
--config (grpc_listen). Flags override the environment, the environment overrides the file. Durations are written 500ms, 60s,
5m, 1h30m, 30d. The database URL may contain a password, so it has no flag: set HUB_DATABASE_URL or database_url. Default:
SQLite in the data directory.

The first start creates the data directory with the database, the CA, the serving certificate and admin.kubeconfig, which
hubctl and kubectl can use. SIGTERM or SIGINT stops the hub gracefully, a second signal immediately. SIGUSR1 logs stacks,
queues and sessions of the process. SIGUSR2 sets the log level to debug, a second one restores it.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """The hub of a fleet of Kubernetes clusters."""
    if click.get_current_context().invoked_subcommand != "serve":
        ignore_closed_pipe()


_PATH = click.Path(path_type=Path)
_file = partial(click.option, type=_PATH, metavar="FILE")
_config = _file("--config", help="YAML file with the hub's settings.")
_data_dir = click.option("--data-dir", type=_PATH, metavar="DIRECTORY", help="The hub's data directory.")


@contextmanager
def _errors_exit_with(code: int) -> Iterator[None]:
    """Print a MusterError of the block (also one about the settings) to standard error, and end the program with `code`."""
    try:
        yield
    except MusterError as error:
        click.echo(f"hub: {error}", err=True)
        sys.exit(code)


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, field in reversed(Settings.model_fields.items()):
        if name in NO_FLAGS:
            continue
        default = field.get_default(call_default_factory=True, validated_data={})
        multiple = isinstance(default, tuple)
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            multiple=multiple,
            metavar=METAVARS.get(type(default).__name__, "TEXT"),
            help=f"{field.description}{' May be repeated.' if multiple else _default(default)}",
        )(command)
    return command


def _default(default: Any) -> str:
    """The default, as the user writes it in a flag or in YAML."""
    from datetime import timedelta  # noqa: PLC0415 - only for help

    from machinery.durations import format_duration  # noqa: PLC0415 - only for help

    if default is None:
        return ""
    if isinstance(default, timedelta):
        default = format_duration(default)
    return f"  [default: {str(default).lower() if isinstance(default, bool) else default}]"


@main.command(epilog=EPILOG)
@_config
@_settings_options
def serve(config: Path | None, **flags: Any) -> None:
    """Serve agents over gRPC and operators over HTTPS until SIGTERM or SIGINT."""
    with _errors_exit_with(2):
        settings = load(flags, config)
    gc.disable()  # a collection of imported objects would cost a twentieth of the start; `hub.process` enables it
    with first_migration(settings):
        from hub import serve as composition_root  # noqa: PLC0415 - help and settings errors stay fast

    sys.exit(composition_root.main(settings))


@contextmanager
def first_migration(settings: Settings) -> Iterator[None]:
    """Create a new SQLite database in a child process while the block runs, because Alembic would keep 7 MB in this process.

    Errors are not reported here: the hub also migrates, and finds the same errors.
    """
    child, parent = None, os.getpid()
    if settings.database_url is None and not (settings.data_dir / "hub.db").exists():
        with suppress(OSError):  # no process or no memory: the hub migrates
            child = os.fork()
    if child == 0:
        try:
            from hub.commands.migrate import create_database  # noqa: PLC0415 - see the function

            create_database(settings, parent)
        finally:
            os._exit(0)
    yield
    if child is not None:
        with suppress(ChildProcessError):  # SIGCHLD is ignored: the child has ended
            os.waitpid(child, 0)


@main.command()
@_config
@_settings_options
def doctor(config: Path | None, **flags: Any) -> None:
    """Check the installation of a hub and both servers, and suggest how to fix errors.

    Run this command on the hub's machine with the hub's settings. It changes nothing, and the hub may run. It checks the
    data directory, the disk, the keys, the database (schema, clock, replicas, leader), and both servers at their advertised
    addresses (names, certificates, proxies that terminate TLS). It sends a request to the HTTPS API as the administrator.

    Exit codes: 0 no errors, possibly warnings; 1 a check failed; 2 the settings are invalid.
    """
    with _errors_exit_with(2):
        settings = load(flags, config)
    from hub.commands.doctor.command import run  # noqa: PLC0415 - help stays fast

    sys.exit(run(settings))


@main.command()
@click.argument("file", type=_PATH)
@_config
@_data_dir
@_file("--passphrase-file", help="Include the hub's keys in the backup, encrypted with the first line of this file.")
@click.option("--without-keys", is_flag=True, help="Exclude the hub's keys; keep a copy of them elsewhere.")
@click.option(
    "--record",
    type=click.Choice(["now", "later", "only"]),
    default="now",
    show_default=True,
    help="When the hub's metric shows this backup: now; later, when FILE is safe; only: FILE is made and safe, so record it.",
)
def backup(file: Path, *, config: Path | None, data_dir: Path | None, record: str, **chosen: Any) -> None:
    """Write a consistent backup of the hub to FILE while the hub is running.

    The backup can be restored into SQLite or PostgreSQL. Secrets in it stay encrypted as in the database. It contains the
    keys only with --passphrase-file. An existing file is not overwritten.

    \b
    Examples:
      hub backup /backups/hub-2026-11-22.zip --passphrase-file /etc/muster/passphrase
      hub backup /backups/hub-2026-11-22.zip --without-keys
    """
    from hub.commands import backup as command  # noqa: PLC0415 - help stays fast

    with _errors_exit_with(1):
        settings = load({"data_dir": data_dir}, config)
        if record == "only":
            command.record(settings, file)
        else:
            command.run(settings, file, **chosen, records=record == "now")


@main.command()
@click.argument("file", type=_PATH)
@_config
@_data_dir
@_file("--passphrase-file", help="File with the passphrase that decrypts the keys in the backup.")
@_file(
    "--crl",
    "lists",
    multiple=True,
    help="Certificate revocation list (PEM or DER) that the hub published after the backup. May be repeated, once per CA.",
)
@click.option(
    "--readopt",
    "readopts",
    type=click.Choice(["automatic", "approval", "never"]),
    default="automatic",
    show_default=True,
    help="How agents are readmitted whose certificates were issued after the backup.",
)
@click.option("--replace", "replaces", is_flag=True, help="Replace the hub that exists in the database.")
@click.option("--unverified", is_flag=True, help="Restore a backup without keys even if its integrity cannot be verified.")
@click.option(
    "--revision-above",
    "above",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Lower bound for new resourceVersions: a revision that the lost hub served.",
)
def restore(config: Path | None, data_dir: Path | None, readopts: str, **chosen: Any) -> None:
    """Restore a hub from the backup in FILE. Stop all hubs on its database first.

    The hub keeps its id, its CAs and its agents. Watchers must list again. Agents whose certificates were signed after the
    backup reconnect with their recovery certificates. A backup without keys requires the hub's secrets.key at its usual
    path, which verifies the integrity of the backup. The command ends with a list of what may be lost: read it.

    \b
    Examples:
      hub restore /backups/hub-2026-11-22.zip --passphrase-file /etc/muster/passphrase
      hub restore /backups/hub-2026-11-22.zip --crl hub.crl --replace
    """
    from hub.api.restorations import Readopts  # noqa: PLC0415 - the same
    from hub.commands.restore import RestoreOptions, run  # noqa: PLC0415 - help stays fast

    with _errors_exit_with(1):
        run(RestoreOptions(readopts=Readopts(readopts), **chosen), load({"data_dir": data_dir}, config))


@main.command(name="version")
def version_command() -> None:
    """Print the version."""
    click.echo(f"{TITLE} {version()}")


@main.group()
def keys() -> None:
    """The keys that all replicas of a hub share."""


def _lifetimes_and_time(config: Path | None) -> tuple[Any, Any]:
    """The validity periods in the settings, and the current time. Raises InvalidError."""
    from hub.replica.installation import lifetimes_of  # noqa: PLC0415 - help stays fast
    from machinery.runtime.clock import SystemClock  # noqa: PLC0415 - the same

    return lifetimes_of(load({}, config)), SystemClock().now()


@keys.command()
@click.argument("folder", type=_PATH)
@_config
def create(folder: Path, config: Path | None) -> None:
    """Create the keys of a new hub in FOLDER, for --keys-dir of all its replicas.

    Existing files are not replaced. Keep a copy: a hub cannot be recovered without its keys. In Kubernetes, create a Secret
    from the folder: kubectl create secret generic hub-keys --from-file=FOLDER
    """
    from hub.replica.keys import create_keys  # noqa: PLC0415 - help stays fast

    with _errors_exit_with(1):
        create_keys(folder, *_lifetimes_and_time(config))
    click.echo(f"{folder} has the keys of a new hub: give the same to all its replicas with --keys-dir, and keep a copy")


@keys.command(name="next")
@click.argument("folder", type=_PATH)
@_config
def next_command(folder: Path, config: Path | None) -> None:
    """Create the hub's next CA in FOLDER, for a hub with --keys-dir.

    Copy the two files to the keys directory of every replica, wait until `hubctl ca rotate` finds them, and keep a copy. A
    hub that can store the key itself creates its next CA automatically: with --ca-key-place database or secret, or with one
    replica.
    """
    from hub.replica.keys import create_next_authority  # noqa: PLC0415 - help stays fast

    with _errors_exit_with(1):
        certificate, key = create_next_authority(folder, *_lifetimes_and_time(config))
    click.echo(f"{certificate} and {key} are the hub's next CA: put both beside the keys of every replica, and keep a copy")


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@_data_dir
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ca(data_dir: Path | None, arguments: tuple[str, ...]) -> None:
    """Manage the hub's CA on the hub's machine: runs `hubctl ca` with the admin.kubeconfig of the data directory.

    \b
    Examples:
      hub ca status
      hub ca rotate --wait
      hub ca rotate --compromised
    """
    from machinery.runtime.directory import default_data_dir  # noqa: PLC0415 - help stays fast

    place = data_dir or Path(os.environ.get(f"{ENVIRONMENT_PREFIX}DATA_DIR") or default_data_dir())
    program = [sys.executable, "-m", "hubctl", "--kubeconfig", str(place / "admin.kubeconfig"), "ca"]
    os.execv(sys.executable, [*program, *arguments])  # noqa: S606 - our own program, and no shell


@main.command()
@_config
@_data_dir
@click.option("--check", is_flag=True, help="Only list pending migrations; change nothing.")
def migrate(config: Path | None, data_dir: Path | None, check: bool) -> None:  # noqa: FBT001 - click's way
    """Migrate the database schema. A hub also does this when it starts.

    With PostgreSQL, hubs of this release and of the previous one may run during the migration; concurrent migrations wait
    for each other. With SQLite, the database file is first copied to the same directory; the newest three copies are kept.

    Exit codes: 0 the schema is up to date; 1 (with --check) migrations are pending; 2 the check or migration failed, or the
    schema is too new for this release.
    """
    from hub.commands.migrate import run  # noqa: PLC0415 - help stays fast

    with _errors_exit_with(2):
        sys.exit(run(load({"data_dir": data_dir}, config), check=check))


if __name__ == "__main__":
    main(prog_name="hub")
