"""hubctl version."""

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from machinery.product import TITLE
from machinery.product import version as own_version


@click.command()
@connected
def version(client: ApiClient) -> None:
    """Show the versions of hubctl and of the hub.

    \b
    Examples:
      hubctl version
    """
    click.echo(f"{TITLE} hubctl {own_version()}")
    told = client.get("/version")
    click.echo(f"hub {told.get('gitVersion', 'unknown')}")
