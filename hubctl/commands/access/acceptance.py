"""hubctl accept and deny: decisions about clusters. `accept` can also approve a cluster's only waiting certificate request."""

from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

import click

from hubctl.arguments.batch import patch_object, run_batch
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, CREDENTIALS, REQUESTS
from hubctl.commands.access.approval import decisions_of, put_decision, requests_of
from hubctl.errors import CommandError, UsageError
from hubctl.options import CHANGE, text_option, with_options
from hubctl.output.tables import printable
from machinery.durations import format_duration, human_duration
from machinery.errors import MusterError
from machinery.identity import SIGNER, parse_agent_user, parse_bootstrap_user
from machinery.meta.timestamps import parse_time

CLUSTER_UID, WANTED_BY = "hub.open-cluster-management.io/cluster-uid", "hub.open-cluster-management.io/wanted-by-uid"
DENIED_FOR = "hub.open-cluster-management.io/denied"
ASSIGNED_AGENT = "hub.open-cluster-management.io/given-to-agent"
ADDON_LABEL = "open-cluster-management.io/addon-name"


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@with_options(*SELECTION)
@click.option("--skip-approve", is_flag=True, help="Accept the clusters, and approve no certificate request.")
@click.option("--rebuilt", is_flag=True, help="Assign the name to the rebuilt cluster that requests it.")
@click.option("--agent", metavar="ID", help="Assign the cluster to this agent, and revoke its other agents.")
@with_options(*CHANGE)
@connected
def accept(
    client: ApiClient, names: tuple[str, ...], *, skip_approve: bool, rebuilt: bool, agent: str | None, **chosen: Any
) -> None:
    """Accept clusters into the fleet, and approve their certificate requests.

    A cluster needs both decisions; each decision requires its own permission. The command approves the request only if the
    cluster's agent has no other waiting request, and the request came with a bootstrap credential for exactly this cluster
    name. Otherwise it lists the waiting requests, and ends with code 1; the cluster stays accepted.

    A rebuilt cluster has another UID. The hub does not assign the name to this cluster automatically; the condition
    ManagedClusterDuplicated shows its request. With --rebuilt the rebuilt cluster gets the name, with its labels and history,
    and the hub revokes the certificates of the earlier cluster.

    If a cluster has two agents, the first agent keeps the session, and ManagedClusterDuplicated names the second. With --agent
    the second agent takes over, and the hub revokes the certificates of the first. Neither option approves a request.

    \b
    Examples:
      hubctl accept edge1
      hubctl accept edge1 edge2
      hubctl accept -l site=berlin --dry-run=server
      hubctl accept --where '!accepted && age < 1h' --yes
      hubctl accept -f berlin.txt              (lines such as edge1 or cluster/edge1)
      hubctl accept edge1 --skip-approve
      hubctl accept edge1 --rebuilt
      hubctl accept edge1 --agent bcdfg
    """
    if agent is not None and (rebuilt or len(names) != 1):
        raise UsageError("give --agent with one NAME, and without --rebuilt")

    def act(one: ObjectReference) -> str:
        lines = []
        if agent is not None:
            client.patch(one.path, {"metadata": {"annotations": {ASSIGNED_AGENT: agent}}})
            lines.append(f'{one} is assigned to agent "{agent}"; its other agents are revoked')
        if rebuilt:
            lines.append(_hand_over(client, one.name))
        text, cluster = _set_accepted(client, one, accepted=True)
        lines.append(text)
        try:
            if skip_approve or rebuilt or agent is not None:
                waiting = [each["metadata"]["name"] for each in _agents_requests(client, one.name) if not decisions_of(each)]
                lines += [f'its certificate request {each} waits: "hubctl certificate approve {each}"' for each in waiting]
            else:
                lines.append(approve_only_request(client, cluster))
        except CommandError as error:
            why = f"{one} is accepted, but its certificate request is not approved: {error.sentence}"
            raise CommandError(why, reason=error.reason, code=error.code) from None
        return "\n".join(lines)

    run_batch(select_objects(client, names, chosen, CLUSTERS, whole=True), act, chosen, "accept")


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@with_options(*SELECTION)
@text_option("--reason", "TEXT", "Shown to the agent and in the condition of the cluster.")
@with_options(*CHANGE)
@connected
def deny(client: ApiClient, names: tuple[str, ...], *, reason: str, **chosen: Any) -> None:
    """Deny clusters: the hub keeps them, but rejects their reports and certificate renewals.

    A cluster that waits is denied, too: no approval rule accepts it.

    \b
    Examples:
      hubctl deny edge1
      hubctl deny edge1 --reason "not in the inventory"
      hubctl deny -l site=berlin --dry-run=server
      hubctl deny --where 'labels.team == "gone" && !connected' --yes
      hubctl get clusters -o name -l lost | hubctl deny -f - --yes
    """
    selection = select_objects(client, names, chosen, CLUSTERS, whole=True)

    def act(one: ObjectReference) -> str:
        return _set_accepted(client, one, accepted=False, reason=reason)[0]

    run_batch(selection, act, chosen, "deny", is_destructive=True)


def approve_only_request(client: ApiClient, cluster: Mapping[str, Any]) -> str:
    """Approve the only waiting request of an accepted cluster's agent, if its requester may act only for this cluster.

    Approve exactly the revision that was checked. Return a message for the user. If requests wait and none qualifies, raise
    CommandError, which lists these requests.
    """
    name = str(cluster["metadata"]["name"])
    requests = _agents_requests(client, name)
    pending = {str(one["metadata"]["name"]): (one, *_facts(client, name, one)) for one in requests if not decisions_of(one)}
    if not pending:
        return _describe_no_request(cluster, requests)
    first, (request, text, is_own) = next(iter(pending.items()))
    if len(pending) > 1 or not is_own:
        listed = "".join(f"\n  {waiting}: {facts}" for waiting, (_, facts, _) in pending.items())
        why = f"{len(pending)} wait" if len(pending) > 1 else "its requester has no bootstrap credential for only this cluster"
        raise CommandError(f"{why}; check the requester, then `hubctl certificate approve {first}`{listed}")
    try:
        put_decision(client, request, "Approved", "hubctl accept")
    except CommandError as error:
        now = client.find(REQUESTS.of(first)) if error.reason == "Conflict" else None
        if now is None or (now["metadata"]["uid"], decisions_of(now)) != (request["metadata"]["uid"], ["Approved"]):
            raise
        return f"its certificate request {first} is approved already"
    return f'certificate request "{first}" approved{client.note}: {text}'


def _describe_no_request(cluster: Mapping[str, Any], requests: list[dict[str, Any]]) -> str:
    approved = [str(one["metadata"]["name"]) for one in requests if decisions_of(one) == ["Approved"]]
    conditions = (cluster.get("status") or {}).get("conditions") or []
    if approved:
        return f"its certificate request {approved[-1]} is approved already"
    if any((one.get("type"), one.get("status")) == ("ManagedClusterJoined", "True") for one in conditions):
        return "its agent has a certificate already"
    again = f'run "hubctl accept {cluster["metadata"]["name"]}" again'
    return f"it has not requested a certificate yet; the request will need approval: {again}"


def _agents_requests(client: ApiClient, cluster: str) -> list[dict[str, Any]]:
    return [one for one in requests_of(client, cluster) if ADDON_LABEL not in (one["metadata"].get("labels") or {})]


def _facts(client: ApiClient, cluster: str, request: dict[str, Any]) -> tuple[str, bool]:
    """Return facts about a request for the operator to compare, and whether the request is the cluster's own.

    A request is the cluster's own if it is for an agent of the cluster and came with a bootstrap credential for exactly this
    cluster.
    """
    from machinery import pki  # noqa: PLC0415 - slow to load
    from machinery.runtime.clock import SystemClock  # noqa: PLC0415 - likewise

    spec, claimed, key = request["spec"], None, "<unreadable>"
    with suppress(ValueError, MusterError):
        facts = pki.parse_request(b64decode(str(spec.get("request") or ""), validate=True))
        claimed, key = parse_agent_user(facts.subject.common_name), sha256(facts.public_key).hexdigest()
    user, seconds = str(spec.get("username") or "<unknown>"), spec.get("expirationSeconds")
    credential, bound_to = _credential(client, user)
    age = (SystemClock().now() - parse_time(str(request["metadata"]["creationTimestamp"]))).total_seconds()
    duration = format_duration(timedelta(seconds=seconds)) if seconds else "the hub's default"
    text = f"requester {user}, {credential}, age {human_duration(max(age, 0))}, key SHA256:{key}, duration {duration}"
    is_for_agent = claimed is not None and claimed[0] == cluster and spec.get("signerName") == SIGNER
    return printable(text), is_for_agent and bound_to == cluster


def _credential(client: ApiClient, user: str) -> tuple[str, str]:
    """Return a description of a requester's bootstrap credential, and its only cluster; empty: several, or unknown."""
    identifier = parse_bootstrap_user(user)
    if identifier is None:
        return "no bootstrap credential", ""
    try:
        spec = client.get(CREDENTIALS.of(identifier)).get("spec") or {}
    except CommandError as error:
        return f"bootstrap credential {identifier} (unknown: {error.sentence})", ""
    scope = spec.get("clusterName") or ", ".join(map(str, spec.get("clusterNames") or ())) or "any name"
    return f"bootstrap credential {identifier} (for {scope})", str(spec.get("clusterName") or "")


def _hand_over(client: ApiClient, name: str) -> str:
    """Assign the name to the cluster that requested it last. Raises CommandError if no cluster has requested it."""
    cluster = client.get(CLUSTERS.of(name))
    notes = cluster["metadata"].get("annotations") or {}
    uid = notes.get(WANTED_BY)
    if not uid:
        raise CommandError(f'no other cluster has requested the name "{name}": its agent must register first')
    handed = {"metadata": {"annotations": {CLUSTER_UID: uid}, "resourceVersion": cluster["metadata"]["resourceVersion"]}}
    client.patch(CLUSTERS.of(name), handed)
    return f'the name "{name}" is transferred from the cluster with uid {notes.get(CLUSTER_UID)} to the one with uid {uid}'


def _set_accepted(
    client: ApiClient, one: ObjectReference, *, accepted: bool, reason: str = ""
) -> tuple[str, Mapping[str, Any]]:
    """Accept or deny the cluster, unless it is already so (a denial: for this reason). Return a message and the cluster."""
    word = "accepted" if accepted else "denied"

    def change(before: Mapping[str, Any]) -> dict[str, Any] | None:
        spec: dict[str, Any] = {"spec": {"hubAcceptsClient": accepted}}
        is_so = (before.get("spec") or {}).get("hubAcceptsClient") is accepted
        if accepted:
            return None if is_so else spec
        # a new cluster is also not accepted, but only a denied cluster has this condition
        conditions = (before.get("status") or {}).get("conditions") or []
        was_denied = is_so and any(condition.get("type") == "HubAcceptedManagedCluster" for condition in conditions)
        if was_denied and reason in ("", (before["metadata"].get("annotations") or {}).get(DENIED_FOR)):
            return None
        return {**spec, "metadata": {"annotations": {DENIED_FOR: reason}}}

    changed, cluster = patch_object(client, one, change)
    return f"{one} {word}{client.note}" if changed else f"{one} is {word} already", cluster
