"""hubctl api-resources: the kinds that the hub serves, with their words."""

import click

from hubctl.client.connection import connected
from hubctl.client.discovery import Catalogue, ServedKind
from hubctl.client.http import ApiClient
from hubctl.client.resources import known_resource
from hubctl.output.tables import table

TITLES = ("Name", "Words", "APIVersion", "Namespaced", "Kind", "Verbs")


@click.command("api-resources")
@click.option("--all-versions", is_flag=True, help="Also in versions that clients do not take by themselves.")
@click.option("--no-headers", is_flag=True, help="Leave the titles of the columns out.")
@connected
def api_resources(client: ApiClient, *, all_versions: bool, no_headers: bool) -> None:
    """Show the kinds of objects that `hubctl get`, `label`, `delete`, `wait` and others take, and the words for them.

    \b
    Examples:
      hubctl api-resources
      hubctl api-resources --no-headers
    """
    found = [each for each in Catalogue(client).served if each.preferred or all_versions]
    lines = table(TITLES, [_row(each) for each in found])
    for line in lines[1:] if no_headers else lines:
        click.echo(line)


def _row(served: ServedKind) -> list[str]:
    resource = served.resource
    known = known_resource(resource.plural)
    words = [*(known.words[:2] if known is not None else ()), *served.short_names]
    return [
        resource.plural,
        ",".join(word for word in dict.fromkeys(words) if word != resource.plural),
        resource.group_version,
        "true" if resource.namespaced else "false",
        resource.kind,
        ",".join(sorted(served.verbs)),
    ]
