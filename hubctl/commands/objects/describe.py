"""hubctl describe: details of one cluster, bootstrap credential or other object."""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import click

from hubctl.arguments.batch import run_each
from hubctl.arguments.completion import names_of, target_words
from hubctl.arguments.selection import select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import CLUSTER_LABEL, CLUSTERS, CREDENTIALS, REQUESTS, TRANSITIONS, known_resource
from hubctl.commands.objects.events import last_seen
from hubctl.errors import CommandError
from hubctl.options import EVERYTHING, NAMESPACE, SELECTOR, with_options
from hubctl.output.tables import NONE, cell_text, fact_lines, print_lines, section_lines, tree_lines
from machinery.errors import MusterError

NO_SESSION = "(no session)"
HUBS, MOVE_TO = "hub.open-cluster-management.io/hubs", "hub.open-cluster-management.io/move-to"
"""Annotations with the hubs that the agent reports (JSON), and with the hub to which the agent must move."""
TRANSITIONS_SHOWN = 10


class KindGroup(click.Group):
    """Accepts kinds as subcommands. Clusters and bootstrap credentials have their own ones; other kinds use `anything`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        word, slash, name = args[0].partition("/")
        known = known_resource(word)
        own = {CLUSTERS: cluster, CREDENTIALS: bootstrap_credential}.get(known) if known is not None else None
        if own is not None:
            return own.name, own, [name, *args[1:]] if slash else args[1:]
        if ctx.resilient_parsing or word.startswith("-") or word in self.commands:
            return super().resolve_command(ctx, args)
        return word, anything, args

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: (name == "anything", name))


@click.group(cls=KindGroup, subcommand_metavar="KIND NAME [OPTIONS]")
def describe() -> None:
    """Show the details of a cluster, a bootstrap credential, or any other object (`anything` below).

    \b
    Examples:
      hubctl describe cluster edge1
      hubctl describe bootstrap-credential 0123456789abcdef
      hubctl describe rule edges
      hubctl describe addon work-manager -n edge1
    """


@describe.command("cluster")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("clusters"))
@connected
def cluster(client: ApiClient, names: tuple[str, ...]) -> None:
    """Show clusters: decisions, heartbeat, session, version, resources, claims, taints, conditions, requests, changes, Events.

    \b
    Examples:
      hubctl describe cluster edge1
      hubctl describe cluster edge1 edge2
    """

    def show(name: str) -> None:
        if name != names[0]:
            click.echo("\n")
        _describe_cluster(client, name)

    run_each(names, show, named='cluster "{}"'.format, workers=1)


def _describe_cluster(client: ApiClient, name: str) -> None:
    document = client.get(CLUSTERS.of(name))
    answer = client.get(CLUSTERS.of(name), accept=TABLE)
    rows = answer.get("rows") or [{"cells": []}]
    row = dict(zip(_columns(answer), map(cell_text, rows[0]["cells"]), strict=False))
    requests = client.get(REQUESTS.path, accept=TABLE, labelSelector=f"{CLUSTER_LABEL}={name}")
    print_lines(lines(document, row, requests))
    # without changes of earlier clusters with this name
    answer = client.get(TRANSITIONS.within(name), limit=str(TRANSITIONS_SHOWN))
    kept = [item for item in answer.get("items") or [] if item.get("clusterUID") == document["metadata"].get("uid")]
    titles = {"Time": "time", "From": "from", "To": "to", "Reason": "reason", "By": "actor"}
    print_lines(section_lines("Availability Changes", titles, kept, missing=NONE))
    print_lines(_events(client, ObjectReference(CLUSTERS, name)))


@describe.command("bootstrap-credential")
@click.argument("name", metavar="ID", shell_complete=names_of("bootstrap-credentials"))
@connected
def bootstrap_credential(client: ApiClient, name: str) -> None:
    """Show one bootstrap credential: restrictions, settings for clusters, state, and the agents that used it.

    \b
    Examples:
      hubctl describe bootstrap-credential 0123456789abcdef
    """
    print_lines(credential_lines(client.get(CREDENTIALS.of(name))))


def lines(document: Mapping[str, Any], row: Mapping[str, str], requests: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe the ManagedCluster `document`.

    `row`: its table cells by column name; `requests`: the table of its certificate requests.
    """
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    annotations, agent, age = metadata.get("annotations") or {}, row.get("Agent", ""), row.get("Last Beat", "")
    facts = [
        ("Name", metadata["name"]),
        ("Labels", _pairs(metadata.get("labels"))),
        ("Annotations", _pairs({name: text for name, text in annotations.items() if name != HUBS})),
        ("Created", f"{metadata.get('creationTimestamp', '')} ({row.get('Age', '')} ago)"),
        ("Accepted", cell_text(spec.get("hubAcceptsClient", False))),
        ("Joined", row.get("Joined") or "False"),
        ("Available", row.get("Available") or "not known yet"),
        ("Last Beat", "none yet" if age in ("", NONE) else f"{age} ago"),
        ("Session", "none is open" if NO_SESSION in agent or not agent else "open"),
        ("Agent", agent.replace(NO_SESSION, "").strip() or "not known yet"),
        *([("Moves To", annotations[MOVE_TO])] if annotations.get(MOVE_TO) else []),
        ("Flaps", f"{row.get('Flaps') or 0} within a day"),
        ("Lease Duration", f"{spec.get('leaseDurationSeconds', 60)}s"),
        ("Version", (status.get("version") or {}).get("kubernetes") or "not known yet"),
        ("API Servers", ", ".join(config.get("url", "") for config in spec.get("managedClusterClientConfigs") or []) or NONE),
    ]
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    resources = [
        {"name": name, "capacity": capacity.get(name), "allocatable": allocatable.get(name)}
        for name in sorted({*capacity, *allocatable})
    ]
    columns = _columns(requests)
    chosen: dict[str, str] = {name: name for name in ("Name", "Age", "Condition") if name in columns}
    found = [dict(zip(columns, row["cells"], strict=False)) for row in requests.get("rows") or []]
    return [
        *fact_lines(facts),
        *_hubs(annotations.get(HUBS) or "[]"),
        *section_lines("Taints", TAINT_TITLES, spec.get("taints") or []),
        *section_lines("Conditions", CONDITION_TITLES, status.get("conditions") or []),
        *section_lines("Resources", {"Name": "name", "Capacity": "capacity", "Allocatable": "allocatable"}, resources),
        *section_lines("Claims", {"Name": "name", "Value": "value"}, status.get("clusterClaims") or []),
        *section_lines("Certificate Requests", chosen, found),
    ]


TAINT_TITLES = {"Key": "key", "Value": "value", "Effect": "effect", "Added": "timeAdded"}
CONDITION_TITLES = {"Type": "type", "Status": "status", "Since": "lastTransitionTime", "Reason": "reason", "Message": "message"}
HUB_TITLES = {"Name": "name", "State": "state", "ID": "id", "URL": "url", "Credential Ends": "credentialEndsAt"}


def _hubs(annotation: str) -> list[str]:
    """Return the agent's hubs, the preferred hub first; empty if the agent reports no hubs."""
    try:
        found = json.loads(annotation)
    except (ValueError, RecursionError):
        return ["Hubs: (unreadable)"]
    hubs = [hub for hub in found if isinstance(hub, Mapping)] if isinstance(found, list) else []
    return section_lines("Hubs", HUB_TITLES, hubs, missing=NONE) if hubs else []


def _columns(answer: Mapping[str, Any]) -> list[str]:
    return [column["name"] for column in answer.get("columnDefinitions") or []]


def _pairs(values: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted((values or {}).items())) or NONE


USE_TITLES = {
    "Cluster": "clusterName",
    "Agent": "agent",
    "Held Since": "heldSince",
    "Issued": "issuedAt",
    "Serial Number": "serialNumber",
    "Request": "requestName",
}


def credential_lines(document: Mapping[str, Any]) -> list[str]:
    spec, status = document.get("spec") or {}, document.get("status") or {}
    names = f"clusters {', '.join(spec['clusterNames'])}" if spec.get("clusterNames") else "clusters of any name"
    attestation = spec.get("attestation") or {}
    how = "with the keys given" if attestation.get("keys") else "with the keys that it publishes"
    subject = f", for {attestation['subject']}" if attestation.get("subject") else ""
    why = f" ({status['revocationReason']})" if status.get("revocationReason") else ""
    revoked = f"{status.get('revocationTimestamp')} by {status.get('revokedBy') or 'somebody'}{why}"
    facts = [
        ("ID", document["metadata"]["name"]),
        ("Kind", "bearer token, for the HTTPS address" if spec.get("token") else "client certificate"),
        ("For", f"cluster {spec['clusterName']}" if spec.get("clusterName") else names),
        ("Cluster Set", spec.get("clusterSet") or NONE),
        ("Labels", _pairs(spec.get("labels"))),
        ("Attested By", f"{attestation.get('issuer', '')}, {how}{subject}" if attestation else NONE),
        ("Created", f"{document['metadata'].get('creationTimestamp', '')} by {status.get('createdBy', '')}"),
        ("Expires", status.get("expirationTimestamp", "")),
        ("Phase", status.get("phase", "")),
        *([("Revoked", revoked)] if "revocationTimestamp" in status else []),
        ("Uses", f"{status.get('usesSpent', 0)} spent, {status.get('usesHeld', 0)} held, of {spec.get('uses', 'any number')}"),
        ("Admitted", ", ".join(status.get("admittedClusters") or []) or NONE),
    ]
    return [*fact_lines(facts), *section_lines("Agents", USE_TITLES, status.get("uses") or [], missing=NONE)]


EVENTS = "/api/v1/events"
SHOWN_SEPARATELY = ("apiVersion", "kind", "metadata")
HIDDEN_METADATA = frozenset(
    ("managedFields", "name", "namespace", "labels", "annotations", "resourceVersion", "uid", "generation")
)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # contains the values of a Secret


@describe.command("anything")
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME...", shell_complete=target_words)
@with_options(SELECTOR, EVERYTHING, NAMESPACE)
@connected
def anything(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Show objects of any kind completely, with their Events. Of Secrets only the size of each value is shown.

    Certificate requests are decoded.

    \b
    Examples:
      hubctl describe rule edges
      hubctl describe addon/work-manager -n edge1
      hubctl describe clustersets --all
    """
    found = select_objects(client, words, chosen).objects

    def lines(one: ObjectReference) -> list[str]:
        above = [] if one is found[0] else ["\n"]
        return [*above, *object_lines(one, client.get(one.path)), *_events(client, one)]

    run_each(found, lines, print_lines)


def object_lines(one: ObjectReference, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a complete object; for a Secret, only the size of each value."""
    metadata = document["metadata"]
    yield f"Name:         {metadata['name']}"
    yield from ([f"Namespace:    {metadata['namespace']}"] if metadata.get("namespace") else [])
    for title in ("Labels", "Annotations"):
        pairs = sorted(each for each in (metadata.get(title.lower()) or {}).items() if each[0] != LAST_APPLIED)
        yield f"{title + ':':<13} {', '.join(f'{name}={cell_text(value)}' for name, value in pairs) or NONE}"
    yield f"API Version:  {one.resource.group_version}"
    yield f"Kind:         {one.resource.kind}"
    yield from tree_lines({"metadata": {name: value for name, value in metadata.items() if name not in HIDDEN_METADATA}})
    rest = {name: value for name, value in document.items() if name not in SHOWN_SEPARATELY}
    if one.resource.kind == "Secret":
        sizes = {name: f"{len(b64decode(value or ''))} bytes" for name, value in (document.get("data") or {}).items()}
        rest = {**rest, "data": sizes}
    elif one.resource == REQUESTS:
        spec = document.get("spec") or {}
        rest = {**rest, "spec": {**spec, "request": _decode_request(str(spec.get("request") or ""))}}
    yield from tree_lines(rest)


def _decode_request(request: str) -> dict[str, str]:
    from machinery import pki  # noqa: PLC0415 - slow to load

    try:
        facts = pki.parse_request(b64decode(request, validate=True))
    except (ValueError, MusterError) as error:
        return {"unreadable": str(error)}
    proof = "held by the requester" if facts.signature_valid else "NOT PROVEN: the signature does not match"
    return {
        "commonName": facts.subject.common_name,
        "organizations": ", ".join(facts.subject.organizations),
        "alternativeNames": ", ".join((*facts.dns_names, *facts.ip_addresses)),
        "key": f"SHA256:{sha256(facts.public_key).hexdigest()}, {facts.key_refusal or proof}",
    }


def _events(client: ApiClient, one: ObjectReference) -> list[str]:
    selector = f"involvedObject.kind={one.resource.kind},involvedObject.name={one.name}"
    try:
        found = client.get(EVENTS, fieldSelector=selector).get("items") or ()
    except CommandError as error:
        if error.reason != "Forbidden":
            raise
        return ["Events: (no permission to read them)"]
    events = [{**event, "seen": last_seen(event)} for event in sorted(found, key=last_seen)]
    return section_lines("Events", {"Last Seen": "seen", "Type": "type", "Reason": "reason", "Message": "message"}, events)
