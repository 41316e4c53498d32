"""hubctl export writes manifests for an OCM hub. hubctl import creates the inventory of an OCM hub on this hub.

The import changes nothing on the OCM hub. It reads the Leases there to find clusters with two agents.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import click

from hubctl.arguments.batch import confirm, run_each
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import Selection
from hubctl.arguments.targets import Manifest, ObjectReference
from hubctl.client.connection import client_of, connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, LEASES, NAMESPACES, items
from hubctl.commands.clusters.ocm_inventory import (
    ACCEPTED,
    AVAILABLE,
    InventoryItem,
    differences,
    read_inventory,
    with_namespaces,
)
from hubctl.errors import CommandError, ConnectionLostError, UsageError
from hubctl.files import OVERWRITE, as_yaml, output_file
from hubctl.options import CHANGE, DURATION, SELECTOR, with_options
from machinery.durations import format_duration
from machinery.meta.timestamps import parse_time
from machinery.product import NAME

EXPORTED = {"ManagedClusterSet", "ManagedCluster", "Namespace", "ManagedClusterSetBinding", "ManagedClusterAddOn"}
BOUND_ONLY = "hub.open-cluster-management.io/bound-credentials-only"
ACCEPTED_ON = "open-cluster-management.io/automatically-accepted-on"
LEASE, USUAL_PERIOD = "managed-cluster-lease", timedelta(seconds=60)
"""The name of a cluster's Lease, and the default interval of its renewals."""
SOONEST = 0.9
"""A single agent does not renew the Lease twice within this share of the interval."""
LONGEST_PAUSE = 10.0
"""Largest number of seconds between two reads of the Leases."""
CREATED, UNCHANGED, DIFFERS, FAILED = "created", "unchanged", "differs", "failed"
MANY = 3
"""For more clusters than this number, the import prints the next steps only once, with the placeholder NAME."""
INSTALL = (
    f"hubctl join {{0}} -n {NAME}-agent --apply {{0}}.kubeconfig",
    "hubctl accept {0}   # when its certificate request is there: hubctl get csr -w",
    "hubctl wait cluster {0} --for=condition=Available --timeout 5m",
)
RETIRE = (
    "kubectl --kubeconfig {0}.kubeconfig -n open-cluster-management scale deployment klusterlet --replicas 0",
    "kubectl --kubeconfig {0}.kubeconfig -n open-cluster-management-agent scale deployment --all --replicas 0",
)
"""Commands that stop OCM's operator and agents, and keep the objects that these have applied."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=names_of("clusters"))
@click.option("--to-ocm", is_flag=True, help="Write what an OCM hub takes. Required.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Default: standard output.")
@OVERWRITE
@with_options(SELECTOR)
@connected
def export(client: ApiClient, names: tuple[str, ...], output: str | None, *, to_ocm: bool, **chosen: Any) -> None:
    """Write the inventory as manifests for an OCM hub: cluster sets, clusters, namespaces, bindings, add-ons.

    The manifests contain no status, no certificates, and no labels or annotations of this project. NAME or --selector select
    clusters with their add-ons. OCM's agents register with a bootstrap kubeconfig of the OCM hub.

    \b
    Examples:
      hubctl export --to-ocm -o inventory.yaml
      hubctl export --to-ocm -l region=eu | kubectl --kubeconfig ocm.kubeconfig apply -f -
    """
    if not to_ocm:
        raise UsageError("give --to-ocm, the only form there is")
    found = with_namespaces(read_inventory(client, names, chosen["selector"]))
    texts = [as_yaml(each.manifest, apart=True) for each in found]
    if output is None:
        click.echo("".join(texts), nl=False)
        return
    with output_file(output, _is_exported, overwrite=chosen["overwrite"]) as file:
        file.writelines(text.encode() for text in texts)
    click.echo(f"{output} is written: kubectl --kubeconfig OCM_KUBECONFIG apply -f {output}", err=True)


def _is_exported(documents: list[Any]) -> bool:
    return all(isinstance(each, dict) and str(each.get("kind")) in EXPORTED for each in documents)


@click.command("import")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--from-ocm", "source", required=True, metavar="KUBECONFIG", help="Kubeconfig of the OCM hub.")
@click.option("--from-context", metavar="NAME", help="Context of that kubeconfig. Default: its current context.")
@click.option(
    "--watch-leases",
    type=DURATION,
    default="0s",
    show_default=True,
    help="Read the leases on the OCM hub for this time; two lease durations show every second agent.",
)
@with_options(SELECTOR, *CHANGE)
@connected
def import_inventory(
    client: ApiClient, names: tuple[str, ...], source: str, from_context: str | None, watch_leases: timedelta, **chosen: Any
) -> None:
    """Create the inventory of an OCM hub on this hub: clusters, cluster sets, their bindings, and add-ons.

    Clusters keep labels, annotations, taints and acceptance. A cluster that is or was accepted at the OCM hub can register only
    with a bootstrap credential for exactly its name. NAME or --selector select clusters with their add-ons; sets and bindings
    are always imported. The command changes nothing on the OCM hub and no existing object: a second run creates missing objects
    and shows differences.

    The command then prints the next steps. It fails if two agents renew the lease of one cluster on the OCM hub.

    \b
    Examples:
      hubctl import --from-ocm ocm.kubeconfig --dry-run=server
      hubctl import --from-ocm ocm.kubeconfig
      hubctl import edge1 edge2 --from-ocm ocm.kubeconfig --watch-leases 3m
    """
    ocm = client_of(source, from_context)
    with ocm.keep_connections():
        found = read_inventory(ocm, names, chosen["selector"])
        accepted = [each for each in found if each.is_accepted]
        observer = LeaseObserver(ocm, accepted)
        observer.look()
        kinds = dict.fromkeys(each.kind for each in found)
        here = {(item := InventoryItem(kind, each)).key: item for kind in kinds for each in items(client, kind.path, {})}
        missing = [ObjectReference(each.kind, each.name, each.namespace) for each in found if each.key not in here]
        confirm(Selection(tuple(missing), is_named=True), chosen, "import")
        failed = InventoryImport(client, here).create(found)
        observer.watch(watch_leases)
    doubled = observer.report()
    if failed:
        raise CommandError(f"{failed} objects failed: remove the cause, then run the same command again")
    if not chosen["dry_run"]:
        _print_steps(accepted, here)
    if doubled:
        raise CommandError(f"{doubled} clusters have two agents on the OCM hub: stop one of the two")


Outcome = tuple[InventoryItem, str, str]
"""An object, the result for the object (CREATED, UNCHANGED, DIFFERS or FAILED), and details; "": no details."""


@dataclass
class InventoryImport:
    """Creates the objects that this hub does not have yet. `here`: the objects of this hub by `InventoryItem.key`."""

    client: ApiClient
    here: Mapping[tuple[str, str, str], InventoryItem]
    not_yet: set[str] = field(default_factory=set)
    """Namespaces that are missing because this is a dry run. The hub cannot check objects in them."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def create(self, found: Sequence[InventoryItem]) -> int:
        """Create missing objects, one kind after the other. Print changes and counts. Return the number of failed objects.

        Raises CommandError if the hub stays unreachable.
        """
        made_by_hub = {each.name for each in found if each.is_accepted}
        for _, group in groupby(with_namespaces(found, made_by_hub), lambda each: each.kind):
            run_each(list(group), self._create, self._show)
        for noun, of_kind in self.counts.items():
            click.echo(f"{noun}s: " + ", ".join(f"{count} {word}" for word, count in of_kind.items()), err=True)
        return sum(each[FAILED] for each in self.counts.values())

    def _create(self, item: InventoryItem) -> Outcome:
        if (known := self.here.get(item.key)) is not None:
            differ = [*differences({part: item.manifest[part] for part in ("metadata", "spec")}, known.found)]
            return item, DIFFERS if differ else UNCHANGED, ", ".join(differ)
        if item.namespace in self.not_yet:
            return item, CREATED, f'not checked, because the namespace "{item.namespace}" does not exist yet'
        try:
            self.client.request("POST", item.kind.within(item.namespace), _decided(item))
        except ConnectionLostError:
            raise
        except CommandError as error:
            is_there = item.kind == NAMESPACES and error.reason == "AlreadyExists"
            return item, UNCHANGED if is_there else FAILED, error.sentence
        return item, CREATED, ""

    def _show(self, outcome: Outcome) -> None:
        item, word, detail = outcome
        self.counts.setdefault(item.kind.noun, Counter())[word] += 1
        if word == FAILED:
            click.echo(f"error: {item}: {detail}", err=True)
        elif word != UNCHANGED:
            is_tried = self.client.dry_run and word == CREATED
            if is_tried and (item.kind == NAMESPACES or item.is_accepted):
                self.not_yet.add(item.name)
            click.echo(f"{item} {word}{self.client.note if is_tried else ''}" + (f": {detail}" if detail else ""))


def _decided(item: InventoryItem) -> Manifest:
    """Return the manifest to create. Its annotations stop this hub's rules where the OCM hub has decided already."""
    manifest = item.manifest
    if item.kind == CLUSTERS and (item.is_accepted or item.status_of(ACCEPTED)):
        denied = {} if item.is_accepted else {ACCEPTED_ON: str(item.found["metadata"].get("creationTimestamp"))}
        notes = {**denied, **manifest["metadata"].get("annotations", {}), BOUND_ONLY: "true"}
        manifest["metadata"] = {**manifest["metadata"], "annotations": notes}
    return manifest


def _print_steps(clusters: Sequence[InventoryItem], here: Mapping[tuple[str, str, str], InventoryItem]) -> None:
    """Print the next steps for clusters that are not Available at this hub, or are still Available at the OCM hub."""
    joined = {name for (_, _, name), each in here.items() if each.status_of(AVAILABLE) == "True" and each.kind == CLUSTERS}
    new = [each.name for each in clusters if each.name not in joined]
    old = [each.name for each in clusters if each.name in joined and each.status_of(AVAILABLE) == "True"]
    for title, names, steps in (
        ("To move, with the agent of this hub beside OCM's", new, (*INSTALL, *RETIRE)),
        ("Available on both hubs, so that OCM's agent can stop", old, RETIRE),
    ):
        is_few = len(names) <= MANY
        for name in names if is_few else ["NAME"]:
            click.echo(f"\n{title}: {name if is_few else f'{len(names)} clusters, for each NAME such as {names[0]}'}")
            click.echo("\n".join(f"  {step.format(name)}" for step in steps))


class Renewal(NamedTuple):
    """One renewal of a Lease. `writer`: the field manager that has written the renewTime."""

    at: datetime
    holder: str
    writer: str


def second_agent(renewals: Iterable[Renewal], period: timedelta) -> str:
    """Return the reason to assume that two agents renew a Lease; "": none. `period`: the interval of one agent's renewals."""
    for before, after in pairwise(sorted(set(renewals))):
        if before[1:] != after[1:]:
            return f'after {before.writer} (holder "{before.holder}") {after.writer} (holder "{after.holder}") renewed it'
        if after.at - before.at < period * SOONEST:
            gap, usual = format_duration(after.at - before.at), format_duration(period)
            return f"it was renewed twice within {gap}, and one agent waits {usual}, unless it has just restarted"
    return ""


class LeaseObserver:
    """Reads the Leases of clusters on the OCM hub repeatedly."""

    def __init__(self, client: ApiClient, clusters: Iterable[InventoryItem]) -> None:
        self._client = client
        seconds = {each.name: each.found["spec"].get("leaseDurationSeconds") for each in clusters}
        self._periods = {name: timedelta(seconds=each) if each else USUAL_PERIOD for name, each in seconds.items()}
        self._renewals = {name: set[Renewal]() for name in seconds}

    def look(self) -> None:
        """Read all Leases once. Raises CommandError."""
        for lease in items(self._client, LEASES.path, {"fieldSelector": f"metadata.name={LEASE}"}):
            metadata, spec = lease["metadata"], lease.get("spec") or {}
            known = self._renewals.get(str(metadata.get("namespace")))
            if known is not None and spec.get("renewTime"):
                entries = (each for each in metadata.get("managedFields") or () if "f:renewTime" in str(each.get("fieldsV1")))
                writer = next((str(each.get("manager")) for each in entries), "")
                known.add(Renewal(parse_time(spec["renewTime"]), str(spec.get("holderIdentity") or ""), writer))

    def watch(self, duration: timedelta) -> None:
        """Read all Leases repeatedly for `duration`, but at least once. Raises CommandError."""
        pause, ends = min(LONGEST_PAUSE, duration.total_seconds() / 10), time.monotonic() + duration.total_seconds()
        self.look()
        while time.monotonic() < ends:
            time.sleep(pause)
            self.look()

    def report(self) -> int:
        """Print the clusters that have two agents at the OCM hub, and counts of Leases. Return the number of such clusters."""
        doubled = {name: second_agent(each, self._periods[name]) for name, each in self._renewals.items()}
        for name, why in doubled.items():
            if why:
                click.echo(f'error: cluster "{name}": two agents renew its lease on the OCM hub: {why}', err=True)
        read, renewed = (sum(len(each) > count for each in self._renewals.values()) for count in (0, 1))
        found = sum(map(bool, doubled.values()))
        click.echo(f"leases on the OCM hub: {read} read, {renewed} renewed meanwhile, {found} by two agents", err=True)
        return found
