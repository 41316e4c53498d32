"""Requests of all kinds of requesters, with mutations of the PEM and of the data that is submitted with it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from bench.csrs.drafts import Draft, dns_names, rdns_of
from bench.csrs.mutations import MUTATIONS, requested_duration
from bench.csrs.world import AGENT, EDGE, GONE, NEW, OTHER, RECOVERY, TOKENS, UID, WORK, Attempt, World
from hub.api import certificatesigningrequests as rules
from hub.api.certificatesigningrequests import AddOnRequest
from machinery.identity import (
    CLUSTER_LABEL,
    SIGNER,
    AddOnName,
    AgentId,
    ClusterName,
    CredentialId,
    addon_subject,
    agent_subject,
    bootstrap_subject,
    recovery_subject,
)


def drafted(random: Random, world: World) -> tuple[Attempt, list[str]]:
    """Return a request with zero to four mutations, mostly one, and the names of the mutations."""
    asker = random.choice(world.askers)
    strangers = (EDGE, OTHER, NEW, TOKENS, GONE, ClusterName("c" * 63), ClusterName("0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70"))
    cluster = ClusterName(random.choice(sorted(asker.clusters))) if asker.clusters else random.choice(strangers)
    is_own = asker.name in ("agent", RECOVERY)
    agent = AGENT if is_own or random.random() < 0.5 else AgentId(f"agent-{random.randrange(9)}")
    is_addon = asker.name == "agent" and random.random() < 0.3
    subject = addon_subject(EDGE, WORK, "work") if is_addon else agent_subject(cluster, agent)
    foreign = (
        agent_subject(OTHER, AGENT),
        agent_subject(EDGE, AgentId("agent-2")),
        agent_subject(ClusterName(f"{cluster}x"), agent),
        recovery_subject(cluster, agent),
        addon_subject(OTHER, WORK, "work"),
        addon_subject(EDGE, AddOnName("worker"), "work"),
        bootstrap_subject(world.victim.credential or CredentialId("")),
    )
    draft = Draft(random, world.keys, random.choices(world.keys.own, (20, 20, 20, 20, 10, 3, 1))[0], rdns_of(subject), foreign)
    if is_addon:
        draft.extensions.append(dns_names(f"{WORK}.addon.open-cluster-management.io"))
    attempt = Attempt(
        b"",
        asker,
        cluster,
        agent,
        UID + cluster,
        {CLUSTER_LABEL: cluster, **({rules.ADDON_LABEL: WORK} if is_addon else {})},
        addon=AddOnRequest(WORK, SIGNER) if is_addon else None,
        post=asker.record is None or (asker.name != RECOVERY and random.random() < 0.4),
    )
    every: tuple[Callable[..., Any], ...] = (*MUTATIONS, *FORGERIES)
    chosen = random.sample(every, random.choices((0, 1, 2, 3, 4), (10, 60, 20, 7, 3))[0])
    for mutation in chosen:
        if mutation in FORGERIES:
            attempt = mutation(attempt, draft, world)
        else:
            mutation(draft)
    return replace(attempt, pem=draft.pem()), [mutation.__name__ for mutation in chosen]


def forge_cluster(attempt: Attempt, draft: Draft, _: World) -> Attempt:
    """Name another cluster, agent, uid or label than in the subject."""
    random = draft.random
    cluster = random.choice((OTHER, EDGE, NEW, "", "A", "a/b", "a\0", "..", "é", "c" * 64))
    agent = random.choice((attempt.agent, "agent-2", "", "A", "a:b", "a\n"))
    uid = random.choice((attempt.uid, "", "another", UID + cluster))
    labels = random.choice((attempt.labels, {}, {**attempt.labels, CLUSTER_LABEL: cluster}))
    return replace(attempt, cluster=random.choice((cluster, attempt.cluster)), agent=agent, uid=uid, labels=labels)


def forge_identity(attempt: Attempt, draft: Draft, _: World) -> Attempt:
    """Make a consistent request for a cluster that is not the requester's."""
    cluster = draft.random.choice((OTHER, EDGE, NEW, GONE))
    draft.rdns, draft.extensions = rdns_of(agent_subject(cluster, AgentId(attempt.agent))), []
    return replace(attempt, cluster=cluster, uid=UID + cluster, labels={CLUSTER_LABEL: cluster})


def forge_addon(attempt: Attempt, draft: Draft, _: World) -> Attempt:
    name = draft.random.choice((WORK, *map(AddOnName, ("other", "", "a/b", "\0"))))
    signer = draft.random.choice((SIGNER, "example.com/signer", ""))
    return replace(attempt, addon=AddOnRequest(name, signer), labels={**attempt.labels, rules.ADDON_LABEL: name})


def forge_duration(attempt: Attempt, draft: Draft, _: World) -> Attempt:
    duration = requested_duration(draft.random)
    return replace(attempt, duration=duration, spec={**attempt.spec, "expirationSeconds": int(duration.total_seconds())})


def forge_usages(attempt: Attempt, draft: Draft, _: World) -> Attempt:
    usages = draft.random.choice(
        (["server auth"], ["any"], [], ["client auth"], ["cert sign", "client auth"], [*rules.USAGES] * 2)
    )
    signer = draft.random.choice((SIGNER, SIGNER, "kubernetes.io/legacy-unknown", "example.com/x", "x"))
    return replace(attempt, post=True, spec={**attempt.spec, "usages": usages, "signerName": signer})


def forge_requester(attempt: Attempt, _: Draft, world: World) -> Attempt:
    """Put user, groups and serial of another requester into the spec."""
    extra = {rules.SERIAL_EXTRA: [f"{world.victim.serial:x}"]}
    claims = {"username": world.victim.user, "groups": ["system:masters"], "extra": extra, "uid": "u"}
    return replace(attempt, post=True, spec={**attempt.spec, **claims})


FORGERIES: tuple[Callable[..., Any], ...] = (
    *(forge_cluster, forge_identity, forge_addon, forge_duration, forge_usages, forge_requester),
)
