"""hubctl revoke and get crl: permanent revocation of credentials, and the hub's revocation lists."""

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any

import click

from hubctl.arguments.batch import run_batch
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, CREDENTIALS, REVOCATIONS
from hubctl.errors import CommandError, UsageError
from hubctl.options import CHANGE, DRY_RUN, text_option, with_options
from hubctl.output.formats import CRL_FORMATS
from hubctl.output.tables import print_lines

REASONS = ("Unspecified", "KeyCompromise", "AffiliationChanged", "Superseded", "CessationOfOperation", "PrivilegeWithdrawn")


_REASON = with_options(
    click.option(
        "--reason",
        type=click.Choice(REASONS, case_sensitive=False),
        default=REASONS[0],
        show_default=True,
        help="Reason in the certificate revocation list (RFC 5280).",
    ),
    text_option("--message", "-m", "TEXT", "Human-readable reason."),
)


@click.group()
def revoke() -> None:
    """Revoke certificates and credentials permanently. Every replica closes their open streams at once.

    `hubctl deny` is reversible: the cluster keeps its certificate, and reports again when it is accepted.

    \b
    Examples:
      hubctl revoke cluster edge1 --reason KeyCompromise -m "laptop stolen"
      hubctl revoke agent edge1 bcdfg
      hubctl revoke serial 5f3a09
      hubctl revoke bootstrap-credential 0123456789abcdef
      hubctl get revocations
    """


@revoke.command("cluster")
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@_REASON
@with_options(*SELECTION, *CHANGE)
@connected
def cluster(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Revoke all certificates of clusters and their add-ons, and the bootstrap credentials that are bound to them.

    To register again, a revoked cluster needs a bootstrap credential that is made later. The cluster stays accepted, so only
    its certificate request needs approval.

    \b
    Examples:
      hubctl revoke cluster edge1 --reason KeyCompromise
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.bootstrap    (to admit it again)
      hubctl revoke cluster -l site=berlin --reason KeyCompromise -m "laptops stolen" --dry-run=server
      hubctl revoke cluster -f stolen.txt --reason KeyCompromise --yes
    """
    selection = select_objects(client, names, chosen, CLUSTERS)
    is_one = len(selection.objects) == 1

    def act(one: ObjectReference) -> str:
        again = f"\nto admit it again: hubctl create bootstrap-kubeconfig --cluster {one.name} -o {one.name}.bootstrap"
        return f"{one} {_revoke(client, {'cluster': one.name}, chosen)}{again if is_one else ''}"

    run_batch(selection, act, chosen, "revoke the credentials of", is_destructive=True)


@revoke.command("agent")
@click.argument("cluster_name", metavar="CLUSTER", shell_complete=names_of("clusters"))
@click.argument("agent_id", metavar="AGENT")
@with_options(_REASON, DRY_RUN)
@connected
def agent(client: ApiClient, cluster_name: str, agent_id: str, **chosen: Any) -> None:
    """Revoke the certificates of one agent of a cluster. Certificates of add-ons and other agents stay valid.

    \b
    Examples:
      hubctl revoke agent edge1 bcdfg --reason Superseded
    """
    click.echo(_revoke(client, {"cluster": cluster_name, "agent": agent_id}, chosen))


@revoke.command("serial")
@click.argument("serial", metavar="HEX")
@with_options(_REASON, DRY_RUN)
@connected
def serial(client: ApiClient, serial: str, **chosen: Any) -> None:
    """Revoke a certificate by its serial number, and all certificates with the same key, such as its recovery certificate.

    \b
    Examples:
      hubctl revoke serial 5f3a09 --reason KeyCompromise
      hubctl revoke serial 5F:3A:09
    """
    plain = serial.replace(":", "").lower().removeprefix("0x").lstrip("0")
    if not plain or set(plain) - set("0123456789abcdef"):
        raise UsageError(f'"{serial}" is not a serial number: write it in hex, as `openssl x509 -noout -serial` prints it')
    click.echo(_revoke(client, {"serial": plain}, chosen))


@revoke.command("bootstrap-credential")
@click.argument("names", nargs=-1, metavar="ID...", shell_complete=names_of("bootstrap-credentials"))
@_REASON
@with_options(*SELECTION, *CHANGE)
@connected
def bootstrap_credential(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Revoke bootstrap credentials. No cluster can register with them any more; registered clusters are not affected.

    \b
    Examples:
      hubctl revoke bootstrap-credential 0123456789abcdef
      hubctl revoke bootstrap-credential --all --yes
    """
    selection = select_objects(client, names, chosen, CREDENTIALS)

    def act(one: ObjectReference) -> str:
        return f"{one} {_revoke(client, {'bootstrapCredential': one.name}, chosen)}"

    run_batch(selection, act, chosen, "revoke", is_destructive=True)


def _revoke(client: ApiClient, subject: dict[str, str], chosen: Mapping[str, Any]) -> str:
    """Revoke the subject. Return a message about what was revoked. Raises CommandError."""
    message = chosen["message"]
    prefix = f"{subject.get('cluster') or subject.get('bootstrapCredential') or subject.get('serial', '')[:16]}-"
    spec = {**subject, "reason": chosen["reason"], **({"message": message} if message else {})}
    kind = {"apiVersion": REVOCATIONS.group_version, "kind": REVOCATIONS.kind}
    body = {**kind, "metadata": {"generateName": prefix}, "spec": spec}
    made = client.request("POST", REVOCATIONS.path, body)
    status = made.get("status") or {}
    counts = {
        "certificate": int(status.get("certificatesRevoked") or 0),
        "bootstrap credential": len(status.get("bootstrapCredentials") or ()),
        "certificate request": len(status.get("requestsRefused") or ()),
        "ServiceAccount": int(status.get("serviceAccountsEnded") or 0),
    }
    ended = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count)
    made_name = "dry run" if client.dry_run else f"revocation {made['metadata']['name']}"
    return f"revoked: {ended or 'nothing was valid any more'} ({made_name})"


INDEX = "/crl"


def show_lists(client: ApiClient, name: str | None, form: str | None) -> None:
    """Print the revocation lists of all CAs, or of those whose id begins with `name`.

    `form`: one of CRL_FORMATS; None: text. Raises CommandError.
    """
    form = form or "text"
    if form not in CRL_FORMATS:
        raise UsageError(f"the formats of a revocation list are {', '.join(CRL_FORMATS)}")
    lists = {str(entry["authority"]).rpartition("/")[2]: entry for entry in json.loads(client.raw(INDEX))["lists"]}
    found = [one for one in lists if one.startswith(name or "")]
    if not found:
        raise CommandError(f'the hub has no CA "{name}": {", ".join(lists)}')
    if form == "der" and len(found) > 1:
        raise UsageError(f"-o der prints one list; choose the CA: {', '.join(found)}")
    for one in found:
        if form == "text":
            print_lines(_lines(lists[one], client.raw(lists[one]["der"])))
        else:
            click.echo(client.raw(lists[one][form]), nl=False)


def _lines(entry: Mapping[str, Any], der: bytes) -> list[str]:
    from machinery import pki  # noqa: PLC0415 - slow to load

    content = pki.parse_list(der)
    return [
        f"Revocation list of {entry['authority']}",
        f"  Issuer:      {content.issuer}",
        f"  Number:      {content.number}",
        f"  This update: {content.this_update.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"  Next update: {content.next_update.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"  Revoked:     {len(content.entries)}",
        *(f"    {each.serial:x}  {each.at:%Y-%m-%dT%H:%M:%SZ}  {each.reason or '-'}" for each in content.entries),
    ]
