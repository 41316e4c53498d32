"""A certificate signing request before it is encoded and signed: what the mutations change."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from bench.csrs import der
from bench.csrs.ring import Pair, Ring
from bench.csrs.world import AGENT, EDGE, GONE, NEW, OTHER, RECOVERY, TOKENS, UID, WORK, Asker, Attempt, World
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import AddOnRequest
from machinery.identity import CLUSTER_LABEL, SIGNER, AgentId, CertificateSubject, ClusterName, addon_subject, agent_subject

COMMON_NAME, ORGANIZATION, UNIT = "2.5.4.3", "2.5.4.10", "2.5.4.11"
REQUESTED_EXTENSIONS = "1.2.840.113549.1.9.14"
ALTERNATIVE_NAMES = "2.5.29.17"
WIDTH = 64
Rdn = list[tuple[str, der.Node]]


@dataclass
class Draft:
    """Everything of a request. `signer`: who signs it; `digest`: with what. The lists of steps run one after the other."""

    asker: Asker
    cluster: ClusterName
    agent: AgentId
    addon: bool
    rdns: list[Rdn]
    key: Pair
    signer: Pair
    random: Random
    ring: Ring
    world: World
    spki: bytes | None = None
    version: der.Node = field(default_factory=lambda: der.integer(0))
    extensions: list[der.Node] = field(default_factory=list)
    attributes: list[der.Node] = field(default_factory=list)
    digest: str = "sha256"
    on_unsigned: list[Callable[[der.Node], None]] = field(default_factory=list)
    """Change the tree of what is signed, before it is."""
    on_signed: list[Callable[[der.Node], None]] = field(default_factory=list)
    on_bytes: list[Callable[[bytes], bytes]] = field(default_factory=list)
    on_pem: list[Callable[[bytes], bytes]] = field(default_factory=list)
    on_attempt: list[Callable[[Attempt], Attempt]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def encoded(self) -> bytes:
        """The PEM block."""
        unsigned = self._unsigned()
        for change in self.on_unsigned:
            change(unsigned)
        algorithm, signature = self.signer.signed(unsigned.encoded(), self.digest)
        signed = der.sequence(unsigned, algorithm, der.bits(signature))
        for change in self.on_signed:
            change(signed)
        raw = signed.encoded()
        for alter in self.on_bytes:
            raw = alter(raw)
        pem = pem_of(raw)
        for alter in self.on_pem:
            pem = alter(pem)
        return pem

    def _unsigned(self) -> der.Node:
        attributes = [node.copied() for node in self.attributes]
        if self.extensions:
            wanted = der.set_of(der.sequence(*self.extensions))
            attributes.append(der.sequence(der.oid(REQUESTED_EXTENSIONS), wanted))
        spki = der.parsed(self.key.spki if self.spki is None else self.spki)
        return der.sequence(self.version, der.name(self.rdns), spki, der.Node(der.ATTRIBUTES, parts=attributes))

    def attempt(self) -> Attempt:
        posted = self.asker.record is None or (self.asker.name != RECOVERY and self.random.random() < 0.4)
        labels = {CLUSTER_LABEL: str(self.cluster), **({rules.ADDON_LABEL: str(WORK)} if self.addon else {})}
        attempt = Attempt(
            pem=self.encoded(),
            asker=self.asker,
            cluster=str(self.cluster),
            agent=str(self.agent),
            uid=UID + self.cluster,
            addon=AddOnRequest(WORK, SIGNER) if self.addon else None,
            post=posted,
            labels=labels,
        )
        for change in self.on_attempt:
            attempt = change(attempt)
        return attempt


def pem_of(raw: bytes) -> bytes:
    text = b64encode(raw)
    lines = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return b"\n".join((b"-----BEGIN CERTIFICATE REQUEST-----", *lines, b"-----END CERTIFICATE REQUEST-----", b""))


def rdns_of(subject: CertificateSubject) -> list[Rdn]:
    organizations = [(ORGANIZATION, der.text(value, der.PRINTABLE)) for value in sorted(subject.organizations)]
    parts = [organizations] if organizations else []
    return [*parts, [(COMMON_NAME, der.text(subject.common_name, der.PRINTABLE))]]


def extension(dotted: str, value: bytes, *, critical: bool = False) -> der.Node:
    flag = [der.Node(0x01, b"\xff")] if critical else []
    return der.sequence(der.oid(dotted), *flag, der.octets(value))


def dns_names(*values: str) -> der.Node:
    names = der.sequence(*(der.Node(0x82, value.encode()) for value in values))
    return extension(ALTERNATIVE_NAMES, names.encoded())


def drafted(random: Random, world: World) -> Draft:
    """A request that its asker may make, mostly: nothing is wrong with it yet."""
    asker = random.choice(world.askers)
    cluster = _cluster(asker, random)
    own = asker.name in ("agent", RECOVERY)
    agent = AGENT if own or random.random() < 0.5 else AgentId(f"agent-{random.randrange(9)}")
    addon = asker.name == "agent" and random.random() < 0.3
    key = random.choices(world.ring.own, (20, 20, 20, 20, 10, 3, 1))[0]
    subject = addon_subject(EDGE, WORK, "work") if addon else agent_subject(cluster, agent)
    draft = Draft(asker, cluster, agent, addon, rdns_of(subject), key, key, random, world.ring, world)
    if addon:
        draft.extensions.append(dns_names(f"{WORK}.addon.open-cluster-management.io"))
    return draft


def _cluster(asker: Asker, random: Random) -> ClusterName:
    if asker.clusters:
        return ClusterName(random.choice(sorted(asker.clusters)))
    return ClusterName(
        random.choice((EDGE, OTHER, NEW, TOKENS, GONE, "newer", "c" * 63, "0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70"))
    )
