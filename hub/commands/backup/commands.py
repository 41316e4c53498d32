"""The command lines of `hub backup` and `hub restore`."""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with the hub's settings.")
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIRECTORY", help="The hub's data directory.")
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Seal the hub's keys into the backup, with the first line of this file.",
)
@click.option("--without-keys", is_flag=True, help="Leave the hub's keys out: they are kept elsewhere.")
def backup(
    file: Path,
    *,
    config: Path | None,
    data_dir: Path | None,
    passphrase_file: Path | None,
    without_keys: bool,
) -> None:
    r"""Write all that the hub knows, as it is at one instant, to FILE, while it goes on.

    The file can be restored into either database. Secrets in it are sealed as they are in the database; the keys are in it only
    with a passphrase. No file is overwritten.

    \b
    Examples:
      hub backup /backups/hub-2026-11-22.zip --passphrase-file /etc/muster/passphrase
      hub backup /backups/hub-2026-11-22.zip --without-keys
    """
    from hub.commands.backup.making import run  # noqa: PLC0415 - help comes at once

    sys.exit(run(file, config, data_dir, passphrase_file, without_keys=without_keys))


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with the hub's settings.")
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIRECTORY", help="The hub's data directory.")
@click.option(
    "--passphrase-file", type=click.Path(path_type=Path), metavar="FILE", help="What the keys in the backup are sealed with."
)
@click.option(
    "--crl",
    "lists",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A revocation list that the hub published after the backup, PEM or DER. May be repeated, once per CA.",
)
@click.option(
    "--readopt",
    type=click.Choice(["automatic", "approval", "never"]),
    default="automatic",
    show_default=True,
    help="Whether agents come back whose certificates are newer than the backup.",
)
@click.option("--replace", is_flag=True, help="Put it in the place of the hub that the database has.")
@click.option("--unverified", is_flag=True, help="Restore a backup without keys though nothing shows that nobody changed it.")
@click.option("--revision-above", type=click.IntRange(min=0), default=0, metavar="N", help="A revision that was served.")
def restore(
    file: Path,
    *,
    config: Path | None,
    data_dir: Path | None,
    passphrase_file: Path | None,
    lists: tuple[Path, ...],
    readopt: str,
    replace: bool,
    unverified: bool,
    revision_above: int,
) -> None:
    r"""Make a hub of the backup in FILE; no hub may run on its database meanwhile.

    The hub keeps its id, its CAs and its agents. Whoever watched it lists again. Agents whose certificates were signed after
    the backup come back with their recovery certificates. A backup without keys needs the hub's secrets.key in its place, which
    shows that nobody has changed it. What is lost is said in the end: read it.

    \b
    Examples:
      hub restore /backups/hub-2026-11-22.zip --passphrase-file /etc/muster/passphrase
      hub restore /backups/hub-2026-11-22.zip --crl hub.crl --replace
    """
    from hub.api.restorations import Readopts  # noqa: PLC0415 - the same
    from hub.commands.backup.restoring import RestoreOptions, run  # noqa: PLC0415 - help comes at once

    wish = RestoreOptions(file, passphrase_file, lists, Readopts(readopt), replace, revision_above, unverified)
    sys.exit(run(wish, config, data_dir))
