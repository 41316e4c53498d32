"""hubctl get crl: the hub's certificate revocation lists."""

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from hubctl.client.http import ApiClient
from hubctl.errors import CommandError

if TYPE_CHECKING:
    from machinery.pki import SignedList

WORDS = ("crl", "crls", "revocation-lists")
FORMS = ("pem", "der", "text")
INDEX = "/crl"


def show_lists(client: ApiClient, name: str | None, form: str | None) -> None:
    """Print the lists of all CAs, or of the one whose id begins with `name`. Raises CommandError."""
    chosen = form or "text"
    if chosen not in FORMS:
        raise CommandError(f"a revocation list comes as one of {', '.join(FORMS)}", code=2)
    lists = json.loads(client.raw(INDEX))["lists"]
    found = [each for each in lists if _id(each).startswith(name or "")]
    if not found:
        raise CommandError(f'the hub has no CA "{name}": {", ".join(map(_id, lists))}')
    if chosen == "der" and len(found) > 1:
        raise CommandError(f"say which CA's: {', '.join(map(_id, found))}", code=2)
    for each in found:
        if chosen == "text":
            click.echo(_text(each, client.raw(each["der"])))
        else:
            click.echo(client.raw(each[chosen]), nl=False)


def _id(entry: dict[str, Any]) -> str:
    return str(entry["authority"]).rpartition("/")[2]


def _text(entry: dict[str, Any], der: bytes) -> str:
    from machinery import pki  # noqa: PLC0415 - slow to load

    signed: SignedList = pki.parse_list(der)
    content = signed.content
    lines = [
        f"Revocation list of {entry['authority']}",
        f"  Issuer:      {signed.issuer}",
        f"  Number:      {content.number}",
        f"  This update: {content.this_update.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"  Next update: {content.next_update.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"  Revoked:     {len(content.entries)}",
    ]
    lines += [f"    {each.serial:x}  {each.at:%Y-%m-%dT%H:%M:%SZ}  {each.reason or '-'}" for each in content.entries]
    return "\n".join(lines)
