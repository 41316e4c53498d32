"""hubctl release-brake: releases the brake on an operator's order."""

import click

from hubctl.client.connection import connected
from hubctl.client.http import MERGE_PATCH, ApiClient
from hubctl.client.resources import FLEET


@click.command("release-brake")
@connected
def release_brake(client: ApiClient) -> None:
    """Let go of the brake: silent clusters are tainted, marked and removed as usual.

    The brake is put on when a large part of the fleet falls silent at once; `hubctl get fleet` says so. Released, it counts
    only clusters that fall silent from then on.

    \b
    Examples:
      hubctl get fleet
      hubctl release-brake
    """
    path = FLEET.of("fleet")
    brake = (client.get(path).get("status") or {}).get("brake") or {}
    if not brake.get("holds"):
        click.echo("the brake does not hold")
        return
    client.request("PATCH", path, {"spec": {"releaseBrake": True}}, content_type=MERGE_PATCH)
    click.echo(f"the brake is released; it held since {brake.get('since')}")
