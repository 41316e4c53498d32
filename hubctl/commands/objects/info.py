"""hubctl version, whoami, api-resources, log-level and completion."""

import json
from typing import Any

import click
from click.shell_completion import get_completion_class

from hubctl.auth.kubeconfig import has_kubeconfig
from hubctl.client.connection import chosen_client, connected, connection_options
from hubctl.client.http import ApiClient
from hubctl.client.resources import Catalogue, known_resource
from hubctl.output.tables import print_lines, table
from machinery.product import TITLE, version as own_version


@click.command()
@click.option("--client", "client_only", is_flag=True, help="Show only the version of hubctl.")
@connection_options
@click.pass_context
def version(context: click.Context, /, *, client_only: bool, **_connection: Any) -> None:
    """Show the versions of hubctl and, if there is a kubeconfig, of the hub.

    \b
    Examples:
      hubctl version
      hubctl version --client
    """
    click.echo(f"{TITLE} hubctl {own_version()}")
    if client_only or not has_kubeconfig(context):
        return
    answer = chosen_client(context).get("/version")
    click.echo(f"hub {answer.get('gitVersion', 'unknown')}")


REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@click.command("whoami")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="Output format.")
@connected
def whoami(client: ApiClient, output: str) -> None:
    """Show the user and groups that the hub authenticates, and the expiry of the certificate.

    \b
    Examples:
      hubctl whoami
      hubctl whoami --kubeconfig ann.kubeconfig -o json
    """
    answer = client.request("POST", REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    user = answer["status"]["userInfo"]
    known = {"user": user["username"], "groups": user.get("groups", []), "until": client.certificate_ends()}
    if output == "json":
        click.echo(json.dumps(known, indent=2))
        return
    click.echo(f"user:    {known['user']}")
    click.echo(f"groups:  {', '.join(known['groups'])}")
    if known["until"]:
        click.echo(f"until:   {known['until']}")


@click.command("api-resources")
@click.option("--all-versions", is_flag=True, help="Also list versions that are not the preferred one.")
@click.option("--no-headers", is_flag=True, help="Omit the column headers.")
@connected
def api_resources(client: ApiClient, *, all_versions: bool, no_headers: bool) -> None:
    """Show the API resources of the hub, and their names for `hubctl get`, `label`, `delete`, `wait` and other commands.

    \b
    Examples:
      hubctl api-resources
      hubctl api-resources --no-headers
    """
    rows = []
    for served in Catalogue(client).served:
        if served.preferred or all_versions:
            resource, known = served.resource, known_resource(served.resource.plural)
            words = dict.fromkeys((*(known.words[:2] if known is not None else ()), *served.short_names))
            words.pop(resource.plural, None)
            is_namespaced = "true" if resource.namespaced else "false"
            verbs = ",".join(sorted(served.verbs))
            rows.append([resource.plural, ",".join(words), resource.group_version, is_namespaced, resource.kind, verbs])
    lines = table(("Name", "Words", "APIVersion", "Namespaced", "Kind", "Verbs"), rows)
    print_lines(lines[1:] if no_headers else lines)


LOG_LEVEL = "/debug/flags/v"


@click.command("log-level")
@click.argument("level", required=False, type=click.Choice(["debug", "info", "warning", "error", "reset"]))
@click.option("--for", "duration", metavar="DURATION", help="Time after which the previous level is restored.  [default: 15m]")
@connected
def log_level(client: ApiClient, level: str | None, duration: str | None) -> None:
    """Show the hub's log level, or change it temporarily on all replicas; `reset` restores it.

    Each replica applies the level within three seconds and later restores the previous level itself. If the database is
    unavailable, send SIGUSR2 to the process: the first signal sets the level debug, the second signal restores the level.

    \b
    Examples:
      hubctl log-level
      hubctl log-level debug --for 10m
      hubctl log-level reset
    """
    if level is None:
        answer = client.get(LOG_LEVEL)
    elif level == "reset":
        answer = client.request("DELETE", LOG_LEVEL)
    else:
        answer = client.request("PUT", LOG_LEVEL, {"level": level, **({"for": duration} if duration else {})})
    if answer.get("ordered"):
        until = f"until {answer['until']}, set by {answer['by']}"
        click.echo(f"{answer['ordered']} {until}; configured: {answer['started']}")
    else:
        click.echo(f"{answer['started']}, as configured")


SHELLS = ("bash", "zsh", "fish", "powershell")
NAME, VARIABLE = "hubctl", "_HUBCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script for shell completion of commands, options, kinds and object names.

    The script queries names from the hub of the current kubeconfig, and omits them if the hub does not answer within two
    seconds. kubectl completes `kubectl hub` if the program kubectl_complete-hub is in the PATH.

    \b
    Examples:
      hubctl completion bash > /etc/bash_completion.d/hubctl
      hubctl completion zsh > ~/.zfunc/_hubctl
      hubctl completion fish > ~/.config/fish/completions/hubctl.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - all of SHELLS are click's own
    click.echo(found(click.get_current_context().find_root().command, {}, NAME, VARIABLE).source())
