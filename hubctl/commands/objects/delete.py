"""hubctl delete: deletes objects of any kind, and by force clusters that will never answer."""

from collections.abc import Sequence
from typing import Any

import click

from hubctl.arguments.completion import target_words
from hubctl.arguments.targets import One, TargetScope, each, objects
from hubctl.client.connection import connected
from hubctl.client.http import MERGE_PATCH, ApiClient
from hubctl.client.resources import ADDONS, CLUSTERS
from hubctl.commands.objects.wait import GONE, time_left, wait_for
from hubctl.errors import CommandError
from hubctl.options import DRY_RUN, EVERYTHING, NAMESPACE, SELECTOR, dry_run_query, with_options
from hubctl.output.formats import OutputFormat

FORCE_DELETION = "hub.open-cluster-management.io/force-deletion"
OWN_FINALIZER = "/resource-cleanup"


@click.command()
@click.argument("words", nargs=-1, metavar="KIND NAME...", shell_complete=target_words)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    help="Delete the objects in these manifests; - for standard input.",
)
@with_options(SELECTOR, EVERYTHING, NAMESPACE)
@click.option("--force", is_flag=True, help="For clusters that will never reconnect: do not wait, and abandon what remains.")
@click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist.")
@DRY_RUN
@click.option("--wait", is_flag=True, help="Wait until the objects are removed.")
@click.option("--timeout", default="5m", show_default=True, metavar="DURATION", help="Maximum time for --wait.")
@connected
def delete(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Delete objects from the hub. KIND is one of those of `hubctl get`, or KIND/NAME stands for both.

    The add-ons of a deleted cluster are removed first, in the order of their priorities; `hubctl describe cluster` shows
    what remains. The hub revokes the cluster's certificates; it changes nothing in the cluster itself. A deleted bootstrap
    credential is revoked and no longer listed; `hubctl revoke` keeps it in the list.

    \b
    Examples:
      hubctl delete cluster edge1
      hubctl delete cluster edge1 --force
      hubctl delete cluster edge1 edge2 --wait --timeout 2m
      hubctl delete csr edge1-x7k2p
      hubctl delete addon work-manager -n edge1
      hubctl delete -f rules.yaml
    """
    place = TargetScope(chosen["namespace"], chosen["selector"], everything=chosen["everything"])
    found = _meant(client, words, place, chosen["files"])
    if chosen["force"] and any(one.resource.plural != CLUSTERS.plural for one in found):
        raise CommandError("--force is for clusters alone", code=2)
    each(found, lambda one: _delete(client, one, chosen))
    if chosen["wait"] and not chosen["dry_run"]:
        left = time_left(chosen["timeout"])
        each(found, lambda one: wait_for(client, one, GONE, left, OutputFormat()))


def _meant(client: ApiClient, words: tuple[str, ...], place: TargetScope, files: tuple[str, ...]) -> Sequence[One]:
    if words and files:
        raise CommandError("give a kind and names, or --filename, not both", code=2)
    if not files:
        return objects(client, words, place)
    from hubctl.arguments.targets import named_in  # noqa: PLC0415 - only with --filename

    return named_in(client, files, place.namespace)


def _delete(client: ApiClient, one: One, chosen: dict[str, Any]) -> None:
    noun, name, suffix = one.resource.noun, one.name, " (dry run)" if chosen["dry_run"] else ""
    query = dry_run_query(chosen["dry_run"])
    try:
        answer = _forced(client, one, query) if chosen["force"] else client.request("DELETE", one.path, query=query)
    except CommandError as error:
        if error.reason == "NotFound" and chosen["ignore_not_found"]:
            return
        raise
    metadata: Any = answer.get("metadata") or {}
    held = metadata.get("finalizers")
    if held and (chosen["force"] or _is_forced(metadata)):
        click.echo(f'{noun} "{name}" is being deleted by force{suffix}')
    elif held:
        click.echo(f'{noun} "{name}" is being deleted; it goes when {", ".join(map(str, held))} let go{suffix}')
    else:
        click.echo(f'{noun} "{name}" deleted{suffix}')
    if held and _is_forced(metadata) and not chosen["force"]:
        click.echo(f"warning: nothing is waited for: it bears the annotation {FORCE_DELETION}", err=True)


def _forced(client: ApiClient, one: One, query: dict[str, str]) -> dict[str, Any]:
    """Warn, delete the cluster, then force the deletion. The annotation comes last, so that no surviving cluster gets it."""
    before, name = client.get(one.path), one.name
    addons = [str(addon["metadata"]["name"]) for addon in client.get(ADDONS.within(name)).get("items") or []]
    held = [str(each) for each in before["metadata"].get("finalizers") or [] if not each.endswith(OWN_FINALIZER)]
    click.echo(f'warning: cluster "{name}" is given up: nothing on it is cleaned up, and nobody will do so later', err=True)
    if addons:
        click.echo(f"warning: what these add-ons have installed there stays: {', '.join(addons)}", err=True)
    if held:
        click.echo(f"warning: these have not let go and are not waited for: {', '.join(held)}", err=True)
    uid = before["metadata"]["uid"]
    answer = client.request("DELETE", one.path, {"preconditions": {"uid": uid}}, query=query)
    if not (answer.get("metadata") or {}).get("finalizers"):
        return answer
    patch = {"metadata": {"uid": uid, "annotations": {FORCE_DELETION: "true"}}}
    try:
        return client.request("PATCH", one.path, patch, content_type=MERGE_PATCH, query=query)
    except CommandError as error:
        if error.reason == "NotFound":  # it was deleted meanwhile
            return {}
        raise


def _is_forced(metadata: dict[str, Any]) -> bool:
    return FORCE_DELETION in (metadata.get("annotations") or {})
