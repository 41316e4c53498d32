"""hubctl describe: details of one cluster, bootstrap credential or other object."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from hubctl.arguments.completion import names_of, target_words
from hubctl.arguments.targets import One, TargetScope, each, objects
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import CLUSTER_LABEL, CLUSTERS, CREDENTIALS, REQUESTS, TRANSITIONS, known_resource
from hubctl.commands.objects.events import last_seen
from hubctl.errors import CommandError
from hubctl.options import EVERYTHING, NAMESPACE, SELECTOR, with_options
from hubctl.output.tables import printable, shown, table, wants_color

NO_SESSION = "(no session)"
INDENT = "  "
NONE = "<none>"
HUBS, MOVE_TO = "hub.open-cluster-management.io/hubs", "hub.open-cluster-management.io/move-to"
"""Annotations: the hubs that the agent reports, as JSON; the hub that it is asked to move to."""
LAST = 10
"""Number of availability changes shown."""


class KindGroup(click.Group):
    """Accepts a kind as a command: kinds with their own page by any of their words, the others by `anything`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        word, slash, name = args[0].partition("/")
        known = known_resource(word)
        own = {CLUSTERS: cluster, CREDENTIALS: bootstrap_credential}.get(known) if known is not None else None
        if own is not None:
            return own.name, own, [name, *args[1:]] if slash else args[1:]
        if ctx.resilient_parsing or word.startswith("-") or word in self.commands:
            return super().resolve_command(ctx, args)
        return word, anything, args

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "anything":
            return anything
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "anything"]


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
@click.argument("name", shell_complete=names_of("clusters"))
@connected
def cluster(client: ApiClient, name: str) -> None:
    """Show one cluster: decisions, heartbeat and session, version, resources, claims, taints, conditions, requests, changes.

    \b
    Examples:
      hubctl describe cluster edge1
    """
    document = client.get(CLUSTERS.of(name))
    row = _named_cells(client.get(CLUSTERS.of(name), accept=TABLE))
    requests = client.get(REQUESTS.path, accept=TABLE, labelSelector=f"{CLUSTER_LABEL}={name}")
    for line in lines(document, row, requests, color=wants_color()):
        click.echo(line)
    for line in history(document, client.get(TRANSITIONS.within(name), limit=str(LAST))):
        click.echo(line)


@describe.command("bootstrap-credential")
@click.argument("name", metavar="ID", shell_complete=names_of("bootstrap-credentials"))
@connected
def bootstrap_credential(client: ApiClient, name: str) -> None:
    """Show one bootstrap credential: restrictions, settings for clusters, state, and the agents that used it.

    \b
    Examples:
      hubctl describe bootstrap-credential 0123456789abcdef
    """
    for line in credential_lines(client.get(CREDENTIALS.of(name))):
        click.echo(line)


def lines(
    document: Mapping[str, Any], row: Mapping[str, str], requests: Mapping[str, Any], *, color: bool = False
) -> list[str]:
    """The description. `row` holds the cluster's table cells by column name."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    agent = row.get("Agent", "")
    facts = [
        ("Name", metadata["name"]),
        ("Labels", _pairs(metadata.get("labels"))),
        ("Annotations", _pairs({name: text for name, text in (metadata.get("annotations") or {}).items() if name != HUBS})),
        ("Created", f"{metadata.get('creationTimestamp', '')} ({row.get('Age', '')} ago)"),
        ("Accepted", shown(spec.get("hubAcceptsClient", False))),
        ("Joined", row.get("Joined") or "False"),
        ("Available", row.get("Available") or "not known yet"),
        ("Last Beat", _last_beat(row.get("Last Beat", ""))),
        ("Session", "none is open" if NO_SESSION in agent or not agent else "open"),
        ("Agent", agent.replace(NO_SESSION, "").strip() or "not known yet"),
        *([("Moves To", moves_to)] if (moves_to := (metadata.get("annotations") or {}).get(MOVE_TO)) else []),
        ("Flaps", f"{row.get('Flaps') or 0} within a day"),
        ("Lease Duration", f"{spec.get('leaseDurationSeconds', 60)}s"),
        ("Version", (status.get("version") or {}).get("kubernetes") or "not known yet"),
        ("API Servers", ", ".join(config.get("url", "") for config in spec.get("managedClusterClientConfigs") or []) or NONE),
    ]
    described = _facts(facts)
    described += _hubs((metadata.get("annotations") or {}).get(HUBS) or "[]", color=color)
    described += _taints(spec.get("taints") or [])
    described += _conditions(status.get("conditions") or [], color=color)
    described += _resources(status.get("capacity") or {}, status.get("allocatable") or {})
    described += _claims(status.get("clusterClaims") or [])
    return described + _requests(requests)


def _facts(facts: Sequence[tuple[str, Any]]) -> list[str]:
    width = max(len(name) for name, _ in facts) + 2
    return [f"{name + ':':<{width}}{printable(str(value))}" for name, value in facts]


def history(document: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The last changes of availability of this cluster, newest first, without those of earlier clusters of this name."""
    uid = document["metadata"].get("uid")
    kept = [item for item in answer.get("items") or [] if item.get("clusterUID") == uid]
    cells = [[shown(item.get(part) or NONE) for part in ("time", "from", "to", "reason", "actor")] for item in kept]
    return _rows("Availability Changes", ("Time", "From", "To", "Reason", "By"), cells)


def _last_beat(age: str) -> str:
    return "none yet" if age in ("", NONE) else f"{age} ago"


def _named_cells(answer: Mapping[str, Any]) -> dict[str, str]:
    names = [column["name"] for column in answer.get("columnDefinitions") or []]
    rows = answer.get("rows") or [{"cells": []}]
    return dict(zip(names, map(shown, rows[0]["cells"]), strict=False))


def _pairs(values: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted((values or {}).items())) or NONE


def _section(title: str, body: Iterable[str]) -> list[str]:
    found = list(body)
    return [f"{title}:", *found] if found else [f"{title}: {NONE}"]


def _rows(title: str, titles: tuple[str, ...], rows: list[list[str]], *, color: bool = False) -> list[str]:
    return _section(title, table(titles, rows, indent=INDENT, color=color) if rows else ())


def _hubs(annotation: str, *, color: bool) -> list[str]:
    """The agent's hubs in the order of preference; empty if it reports none."""
    try:
        found = json.loads(annotation)
    except ValueError:
        return ["Hubs: (not to be read)"]
    parts = ("name", "state", "id", "url", "credentialEndsAt")
    hubs = [hub for hub in found if isinstance(hub, Mapping)] if isinstance(found, list) else []
    cells = [[shown(hub.get(part) or NONE) for part in parts] for hub in hubs]
    return _rows("Hubs", ("Name", "State", "ID", "URL", "Credential Ends"), cells, color=color) if cells else []


def _taints(taints: list[Mapping[str, Any]]) -> list[str]:
    cells = [[shown(taint.get(part)) for part in ("key", "value", "effect", "timeAdded")] for taint in taints]
    return _rows("Taints", ("Key", "Value", "Effect", "Added"), cells)


def _conditions(conditions: list[Mapping[str, Any]], *, color: bool) -> list[str]:
    parts = ("type", "status", "lastTransitionTime", "reason", "message")
    cells = [[shown(condition.get(part)) for part in parts] for condition in conditions]
    return _rows("Conditions", ("Type", "Status", "Since", "Reason", "Message"), cells, color=color)


def _resources(capacity: Mapping[str, Any], allocatable: Mapping[str, Any]) -> list[str]:
    names = sorted({*capacity, *allocatable})
    cells = [[printable(name), shown(capacity.get(name)), shown(allocatable.get(name))] for name in names]
    return _rows("Resources", ("Name", "Capacity", "Allocatable"), cells)


def _claims(claims: list[Mapping[str, Any]]) -> list[str]:
    return _rows("Claims", ("Name", "Value"), [[shown(claim.get("name")), shown(claim.get("value"))] for claim in claims])


def _requests(answer: Mapping[str, Any]) -> list[str]:
    columns = [column["name"] for column in answer.get("columnDefinitions") or []]
    chosen = [columns.index(name) for name in ("Name", "Age", "Condition") if name in columns]
    cells = [[shown(row["cells"][index]) for index in chosen] for row in answer.get("rows") or []]
    return _rows("Certificate Requests", tuple(columns[index] for index in chosen), cells)


USE_TITLES = ("Cluster", "Agent", "Held Since", "Issued", "Serial Number", "Request")
USE_PARTS = ("clusterName", "agent", "heldSince", "issuedAt", "serialNumber", "requestName")


def credential_lines(document: Mapping[str, Any]) -> list[str]:
    """The credential_lines of the description."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    facts = [
        ("ID", document["metadata"]["name"]),
        ("Kind", "bearer token, for the HTTPS address" if spec.get("token") else "client certificate"),
        ("For", _whom(spec)),
        ("Cluster Set", spec.get("clusterSet") or NONE),
        ("Labels", _pairs(spec.get("labels"))),
        ("Attested By", _issuer(spec.get("attestation") or {})),
        ("Created", f"{document['metadata'].get('creationTimestamp', '')} by {status.get('createdBy', '')}"),
        ("Expires", status.get("expirationTimestamp", "")),
        ("Phase", status.get("phase", "")),
        *_revoked(status),
        ("Uses", f"{status.get('usesSpent', 0)} spent, {status.get('usesHeld', 0)} held, of {spec.get('uses', 'any number')}"),
        ("Let In", ", ".join(status.get("admittedClusters") or []) or NONE),
    ]
    described = _facts(facts)
    cells = [[shown(use.get(part) or NONE) for part in USE_PARTS] for use in status.get("uses") or []]
    return [*described, *(["Agents:", *table(USE_TITLES, cells, indent="  ")] if cells else [f"Agents: {NONE}"])]


def _whom(spec: Mapping[str, Any]) -> str:
    if spec.get("clusterName"):
        return f"cluster {spec['clusterName']}"
    patterns = spec.get("clusterNames") or []
    return f"clusters {', '.join(patterns)}" if patterns else "clusters of any name"


def _issuer(attestation: Mapping[str, Any]) -> str:
    if not attestation:
        return NONE
    how = "with the keys given" if attestation.get("keys") else "with the keys that it publishes"
    subject = f", for {attestation['subject']}" if attestation.get("subject") else ""
    return f"{attestation.get('issuer', '')}, {how}{subject}"


def _revoked(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "revocationTimestamp" not in status:
        return []
    why = f" ({status['revocationReason']})" if status.get("revocationReason") else ""
    return [("Revoked", f"{status['revocationTimestamp']} by {status.get('revokedBy') or 'somebody'}{why}")]


EVENTS = "/api/v1/events"
APART = ("apiVersion", "kind", "metadata")
LEFT_OUT = frozenset(("managedFields", "name", "namespace", "labels", "annotations", "resourceVersion", "uid", "generation"))


@click.command("anything")
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME...", shell_complete=target_words)
@with_options(SELECTOR, EVERYTHING, NAMESPACE)
@connected
def anything(client: ApiClient, words: tuple[str, ...], namespace: str, selector: str, *, everything: bool) -> None:
    """Show objects of any kind completely, with their Events. For Secrets only the size of each value is shown.

    \b
    Examples:
      hubctl describe rule edges
      hubctl describe addon/work-manager -n edge1
      hubctl describe clustersets --all
    """
    found = objects(client, words, TargetScope(namespace, selector, everything=everything))

    def show(one: One) -> None:
        document = client.get(one.path)
        if one is not found[0]:
            click.echo("\n")
        for line in (*object_lines(one, document), *happened(client, one)):
            click.echo(line)

    each(found, show)


def object_lines(one: One, document: Mapping[str, Any]) -> Iterator[str]:
    """The object_lines of the object's description."""
    metadata = document["metadata"]
    yield f"Name:         {metadata['name']}"
    yield from ([f"Namespace:    {metadata['namespace']}"] if metadata.get("namespace") else [])
    for title in ("Labels", "Annotations"):
        pairs = sorted((metadata.get(title.lower()) or {}).items())
        yield f"{title + ':':<13} {', '.join(f'{name}={shown(value)}' for name, value in pairs) or NONE}"
    yield f"API Version:  {one.resource.group_version}"
    yield f"Kind:         {one.resource.kind}"
    yield from _tree({"metadata": {name: value for name, value in metadata.items() if name not in LEFT_OUT}})
    rest = {name: value for name, value in document.items() if name not in APART}
    yield from _tree(_without_secrets(rest) if one.resource.kind == "Secret" else rest)


def happened(client: ApiClient, one: One) -> list[str]:
    """The Events about the object, the newest last."""
    asked = {"involvedObject.kind": one.resource.kind, "involvedObject.name": one.name}
    try:
        answer = client.get(EVENTS, fieldSelector=",".join(f"{name}={value}" for name, value in asked.items()))
    except CommandError as error:
        if error.reason != "Forbidden":
            raise
        return ["Events: (you may not see them)"]
    found = sorted(answer.get("items") or (), key=last_seen)
    if not found:
        return [f"Events: {NONE}"]
    rows = [[last_seen(event), *(shown(event.get(part)) for part in ("type", "reason", "message"))] for event in found]
    return ["Events:", *table(("Last Seen", "Type", "Reason", "Message"), rows, indent=INDENT)]


def _tree(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, part in value.items():
        yield from _branch(f"{indent}{shown(name[:1].upper() + name[1:])}:", part, indent + INDENT)


def _branch(title: str, part: Any, indent: str) -> Iterator[str]:
    if isinstance(part, Mapping) and part:
        yield title
        yield from _tree(part, indent)
    elif isinstance(part, list) and part:
        yield title
        for entry in part:
            if isinstance(entry, Mapping):
                first, *more = _tree(entry, indent + INDENT)
                yield f"{indent}- {first.strip()}"
                yield from more
            else:
                yield f"{indent}- {shown(entry)}"
    else:
        yield f"{title} {NONE if part in ({}, [], None) else shown(part)}"


def _without_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    from base64 import b64decode  # noqa: PLC0415 - only for Secrets

    data = {name: f"{len(b64decode(value or ''))} bytes" for name, value in (document.get("data") or {}).items()}
    return {**document, "data": data}
