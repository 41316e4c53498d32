"""hubctl delete: deletes objects of any kind. It can force the deletion of clusters that no longer answer."""

from dataclasses import replace
from typing import Any

import click

from hubctl.arguments.batch import run_batch, run_each
from hubctl.arguments.completion import target_words
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import ADDONS, CLUSTERS
from hubctl.commands.objects.wait import DELETED, time_left, wait_for
from hubctl.errors import CommandError, UsageError
from hubctl.options import CHANGE, NAMESPACE, with_options

FORCE_DELETION = "hub.open-cluster-management.io/force-deletion"
OWN_FINALIZER = "/resource-cleanup"


@click.command()
@click.argument("words", nargs=-1, metavar="KIND NAME...", shell_complete=target_words)
@with_options(*SELECTION, NAMESPACE)
@click.option("--force", is_flag=True, help="For clusters that will never reconnect: do not wait, and abandon what remains.")
@click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist.")
@with_options(*CHANGE)
@click.option("--wait", is_flag=True, help="Wait until the objects are removed.")
@click.option("--timeout", default="5m", show_default=True, metavar="DURATION", help="Maximum time for --wait.")
@connected
def delete(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Delete objects from the hub. KIND is a kind of `hubctl get`; you can also write KIND/NAME.

    The hub first removes the add-ons of a deleted cluster, in the order of their priorities; `hubctl describe cluster` shows
    which remain. The hub revokes the cluster's certificates and the bootstrap credentials for exactly its name, but changes
    nothing in the cluster itself. A warning names the bootstrap credentials for several names with which the cluster can
    register again. A deleted bootstrap credential is revoked and no longer listed; `hubctl revoke` keeps it in the list.

    \b
    Examples:
      hubctl delete cluster edge1
      hubctl delete cluster edge1 --force
      hubctl delete cluster edge1 edge2 --wait --timeout 2m
      hubctl delete csr edge1-x7k2p
      hubctl delete addon work-manager -n edge1
      hubctl delete clusters --where 'lastBeat > 30d' --dry-run=server
      hubctl delete clusters -l region=eu --yes
      hubctl get clusters -o name --where '!accepted && age > 7d' | hubctl delete -f - --yes
      hubctl delete -f rules.yaml
    """
    selection = select_objects(client, words, chosen)
    if chosen["files"]:  # in the reverse order of `hubctl apply`
        selection = replace(selection, objects=selection.objects[::-1])
    if chosen["force"] and any(one.resource.plural != CLUSTERS.plural for one in selection.objects):
        raise UsageError("--force is only for clusters")
    run_batch(selection, lambda one: _delete(client, one, chosen), chosen, "delete", is_destructive=True)
    if chosen["wait"] and not chosen["dry_run"]:
        left = time_left(chosen["timeout"])

        def gone(one: ObjectReference) -> str:
            wait_for(client, one, DELETED, left)
            return f"{one} {DELETED.words}"

        run_each(selection.objects, gone)


def _delete(client: ApiClient, one: ObjectReference, chosen: dict[str, Any]) -> str:
    try:
        answer = _forced(client, one) if chosen["force"] else client.request("DELETE", one.path)
    except CommandError as error:
        if error.reason == "NotFound" and chosen["ignore_not_found"]:
            return ""
        raise
    metadata: Any = answer.get("metadata") or {}
    held, is_forced = metadata.get("finalizers"), FORCE_DELETION in (metadata.get("annotations") or {})
    if held and is_forced and not chosen["force"]:
        click.echo(f"warning: {one}: the hub does not wait, because of the annotation {FORCE_DELETION}", err=True)
    if held and (chosen["force"] or is_forced):
        return f"{one} is being deleted by force{client.note}"
    if held:
        return f"{one} is being deleted; the hub waits for its finalizers: {', '.join(map(str, held))}{client.note}"
    return f"{one} deleted{client.note}"


def _forced(client: ApiClient, one: ObjectReference) -> dict[str, Any]:
    """Warn, delete the cluster, then add the annotation that forces the deletion.

    The annotation comes last, because a cluster that is not deleted must not get it.
    """
    before, name = client.get(one.path), one.name
    addons = [str(addon["metadata"]["name"]) for addon in client.get(ADDONS.within(name)).get("items") or []]
    held = [str(each) for each in before["metadata"].get("finalizers") or [] if not each.endswith(OWN_FINALIZER)]
    warnings = [f'warning: cluster "{name}" is abandoned: nothing in the cluster is cleaned up, now or later']
    if addons:
        warnings.append(f"warning: these add-ons stay installed in the cluster: {', '.join(addons)}")
    if held:
        warnings.append(f"warning: the hub does not wait for these finalizers: {', '.join(held)}")
    click.echo("\n".join(warnings), err=True)
    uid = before["metadata"]["uid"]
    answer = client.request("DELETE", one.path, {"preconditions": {"uid": uid}})
    if not (answer.get("metadata") or {}).get("finalizers"):
        return answer
    patch = {"metadata": {"uid": uid, "annotations": {FORCE_DELETION: "true"}}}
    try:
        return client.patch(one.path, patch)
    except CommandError as error:
        if error.reason == "NotFound":  # deleted meanwhile
            return {}
        raise
