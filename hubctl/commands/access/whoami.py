"""hubctl whoami: the hub's view of the user of the kubeconfig."""

import json

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient

PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@click.command("whoami")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="How it is shown.")
@connected
def whoami(client: ApiClient, output: str) -> None:
    """Show user and groups as the hub knows them, and until when the certificate is good.

    \b
    Examples:
      hubctl whoami
      hubctl whoami --kubeconfig ann.kubeconfig -o json
    """
    answer = client.request("POST", PATH, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    user = answer["status"]["userInfo"]
    known = {"user": user["username"], "groups": user.get("groups", []), "until": client.certificate_ends()}
    if output == "json":
        click.echo(json.dumps(known, indent=2))
        return
    click.echo(f"user:    {known['user']}")
    click.echo(f"groups:  {', '.join(known['groups'])}")
    if known["until"]:
        click.echo(f"until:   {known['until']}")
