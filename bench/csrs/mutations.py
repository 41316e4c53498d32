"""What is done to a request beside its contents: keys and signatures, the encoding, and what stands around it.

Each function breaks one thing, and says so by its name.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from bench.csrs import contents, der
from bench.csrs.drafts import Draft, pem_of, rdns_of
from bench.csrs.keys import broken_spki
from bench.csrs.world import EDGE, GONE, NEW, OTHER, UID, WORK, Attempt
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import AddOnRequest
from machinery.identity import CLUSTER_LABEL, SIGNER, AddOnName, AgentId, agent_subject

Mutation = Callable[[Draft], None]


# Keys and signatures.


def key_that_is_useless(draft: Draft) -> None:
    draft.key = draft.signer = draft.random.choice(draft.ring.useless)


def key_of_another(draft: Draft) -> None:
    """The victim's, a revoked one, a credential's: with their own signature where the private half is had."""
    draft.key = draft.random.choice((draft.ring.victims, draft.ring.revoked, draft.ring.credentials))
    if draft.key is not draft.ring.victims:
        draft.signer = draft.key


def key_and_signer_differ(draft: Draft) -> None:
    draft.signer = draft.random.choice([pair for pair in draft.ring.own if pair is not draft.key])


def key_that_is_broken(draft: Draft) -> None:
    draft.spki = broken_spki(draft.key.spki, draft.random)


def signature_of_another_digest(draft: Draft) -> None:
    draft.digest = draft.random.choice(("md5", "sha1", "sha384", "sha512"))


def signature_that_is_none(draft: Draft) -> None:
    zero, huge = der.integer(0), der.integer(1 << 300)
    contents = (b"", b"\0", der.sequence(zero, zero).encoded(), der.sequence(huge, huge).encoded(), draft.random.randbytes(70))
    content = draft.random.choice(contents)
    draft.on_signed.append(lambda signed: put(signed, 2, der.bits(content, draft.random.choice((0, 0, 7, 8, 255)))))


def signature_by_another_name(draft: Draft) -> None:
    """The algorithm is another than that which signed, or has parameters that it has not."""
    kinds = (
        "1.2.840.10045.4.3.3",
        "1.2.840.113549.1.1.11",
        "1.2.840.113549.1.1.10",
        "1.3.101.112",
        "1.2.840.10045.4.3.1",
        "2.16.840.1.101.3.4.3.17",
        "1.2.3",
    )
    more = draft.random.choice(((), (der.Node(der.NULL),), (der.sequence(),), (der.text("x"),)))
    algorithm = der.sequence(der.oid(draft.random.choice(kinds)), *more)
    draft.on_signed.append(lambda signed: put(signed, 1, algorithm))


def signature_of_a_victim(draft: Draft) -> None:
    """The victim's own request, word for word or with another's words in it."""
    draft.key = draft.signer = draft.ring.victims
    if draft.random.random() < 0.5:
        draft.rdns = rdns_of(agent_subject(OTHER, AgentId("agent-1")))
    else:
        rdns = draft.rdns
        draft.rdns = rdns_of(agent_subject(OTHER, AgentId("agent-1")))
        draft.on_signed.append(lambda signed: put(signed.parts[0], 1, der.name(rdns)) if signed.parts else None)


def put(node: der.Node, index: int, part: der.Node) -> None:
    """In the place of the part there; another mutation may have taken that away."""
    if index < len(node.parts):
        node.parts[index] = part


# The encoding.


def version_of_any_kind(draft: Draft) -> None:
    draft.version = draft.random.choice(
        (der.integer(1), der.integer(2), der.integer(-1), der.integer(1 << 70), der.text("0"), der.bits(b""))
    )


def tree_before_the_signature(draft: Draft) -> None:
    draft.on_unsigned.append(lambda tree: _shaken(draft, tree))


def tree_after_the_signature(draft: Draft) -> None:
    draft.on_signed.append(lambda tree: _shaken(draft, tree))


def _shaken(draft: Draft, tree: der.Node) -> None:
    """One to three nodes are dropped, doubled, exchanged, cut, named or measured otherwise."""
    random = draft.random
    for _ in range(random.randint(1, 3)):
        nodes = list(tree.walked())
        node, other = random.choice(nodes), random.choice(nodes)
        match random.randrange(8):
            case 0 if node.parts:
                node.parts.pop(random.randrange(len(node.parts)))
            case 1 if node.parts:
                node.parts.append(random.choice(node.parts).copied())
            case 2 if node.parts:
                random.shuffle(node.parts)
            case 3:
                node.tag = random.choice((random.randrange(256), der.SEQUENCE, der.SET, der.NULL, der.OID, 0x1F, 0xFF))
            case 4:
                node.length = random.choice(
                    (b"\x80", b"\x81\x01", b"\x84\xff\xff\xff\xff", b"\x82\x00\x05", b"\xff", b"\x00", b"\x88" + b"\x7f" * 8)
                )
            case 5:
                node.content = random.choice(
                    (b"", b"\0", b"\x80" * 20, random.randbytes(random.randrange(60)), node.content * 2, node.content[:-1])
                )
            case 6:
                node.parts = [*node.parts, der.nested(random.choice((1, 10, 60)))]
            case _:
                copied = other.copied()
                node.tag, node.content, node.parts, node.length = copied.tag, copied.content, copied.parts, copied.length


def bytes_changed(draft: Draft) -> None:
    draft.on_bytes.append(lambda raw: _spoiled(draft, raw))


def pem_changed(draft: Draft) -> None:
    draft.on_pem.append(lambda pem: _spoiled(draft, pem))


def _spoiled(draft: Draft, raw: bytes) -> bytes:
    random, out = draft.random, bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        at = random.randrange(len(out) + 1)
        match random.randrange(4):
            case 0 if out:
                out[at % len(out)] ^= 1 << random.randrange(8)
            case 1:
                out[at:at] = random.randbytes(random.choice((1, 2, 50)))
            case 2:
                del out[at : at + random.choice((1, 2, 100))]
            case _:
                out[at : at + 4] = random.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x30\x80\0\0", b"\r\n\r\n"))
    return bytes(out)


def pem_written_otherwise(draft: Draft) -> None:
    ways: tuple[Callable[[bytes], bytes], ...] = (
        lambda pem: pem * 2,
        lambda pem: b"junk\n" + pem,
        lambda pem: pem + b"junk",
        lambda pem: pem.replace(b"\n", b"\r\n"),
        lambda pem: pem.replace(b"\n", b""),
        lambda pem: b" \n\t" + pem + b"\n\n",
        lambda pem: pem.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
        lambda pem: pem.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"),
        lambda pem: pem.replace(b"-----\n", b"-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
        lambda pem: pem.replace(b"\n", b"\n" * 500),
        lambda pem: pem.decode("latin-1").encode("utf-16"),
        lambda pem: b"\xef\xbb\xbf" + pem,
        lambda pem: pem.replace(b"=", b""),
        lambda pem: pem[: len(pem) // 2],
        lambda _: b"",
        lambda _: pem_of(der.deep(3000)),
        lambda _: pem_of(b"\x30\x80" * 4000),
    )
    draft.on_pem.append(draft.random.choice(ways))


# What stands around it.


def asked_for_another(draft: Draft) -> None:
    random = draft.random
    cluster = random.choice((str(OTHER), str(EDGE), "new", "", "A", "a/b", "a\0", "..", "é", "c" * 64))
    agent = random.choice((draft.agent, "agent-2", "", "A", "a:b", "a\n"))

    def changed(attempt: Attempt) -> Attempt:
        uid = random.choice((attempt.uid, "", "another", UID + cluster))
        labels = random.choice((attempt.labels, {}, {**attempt.labels, CLUSTER_LABEL: cluster}))
        return replace(attempt, cluster=random.choice((cluster, attempt.cluster)), agent=str(agent), uid=uid, labels=labels)

    draft.on_attempt.append(changed)


def asked_whole_for_another(draft: Draft) -> None:
    """Everything fits, but who asks is of another cluster."""
    cluster = draft.random.choice((OTHER, EDGE, NEW, GONE))
    draft.rdns, draft.extensions = rdns_of(agent_subject(cluster, draft.agent)), []
    labels = {CLUSTER_LABEL: str(cluster)}
    draft.on_attempt.append(lambda attempt: replace(attempt, cluster=cluster, uid=UID + cluster, labels=labels, addon=None))


def asked_for_an_addon(draft: Draft) -> None:
    name = draft.random.choice((WORK, AddOnName("other"), AddOnName(""), AddOnName("a/b"), AddOnName("\0")))
    signer = draft.random.choice((SIGNER, "example.com/signer", ""))

    def changed(attempt: Attempt) -> Attempt:
        labels = {**attempt.labels, rules.ADDON_LABEL: str(name)}
        return replace(attempt, addon=AddOnRequest(name, signer), labels=labels)

    draft.on_attempt.append(changed)


def asked_for_a_time(draft: Draft) -> None:
    seconds = draft.random.choice((-1, 0, 1, 599, 600, 3600, 86_400 * 365, 2**31 - 1, 2**31, 10**12, 10**18))
    duration = timedelta(seconds=min(seconds, 10**12))
    draft.on_attempt.append(
        lambda attempt: replace(attempt, duration=duration, spec={**attempt.spec, "expirationSeconds": seconds})
    )


def asked_for_a_use(draft: Draft) -> None:
    usages = draft.random.choice(
        (["server auth"], ["any"], [], ["client auth"], ["cert sign", "client auth"], [*rules.USAGES, *rules.USAGES])
    )
    signer = draft.random.choice((SIGNER, SIGNER, "kubernetes.io/legacy-unknown", "example.com/x", "x"))
    draft.on_attempt.append(
        lambda attempt: replace(attempt, post=True, spec={**attempt.spec, "usages": usages, "signerName": signer})
    )


def asked_as_another(draft: Draft) -> None:
    """Names, groups and a serial that the request claims for its requester."""
    serial = [f"{draft.world.victim.serial:x}"]
    claims = {
        "username": draft.world.victim.user,
        "groups": ["system:masters"],
        "extra": {rules.SERIAL_EXTRA: serial},
        "uid": "u",
    }
    draft.on_attempt.append(lambda attempt: replace(attempt, post=True, spec={**attempt.spec, **claims}))


MUTATIONS: tuple[Mutation, ...] = (
    *contents.ALL,
    key_that_is_useless,
    key_of_another,
    key_and_signer_differ,
    key_that_is_broken,
    signature_of_another_digest,
    signature_that_is_none,
    signature_by_another_name,
    signature_of_a_victim,
    version_of_any_kind,
    tree_before_the_signature,
    tree_after_the_signature,
    bytes_changed,
    pem_changed,
    pem_written_otherwise,
    asked_for_another,
    asked_whole_for_another,
    asked_for_an_addon,
    asked_for_a_time,
    asked_for_a_use,
    asked_as_another,
)


def mutate(draft: Draft) -> None:
    """None to four of them, one mostly."""
    count = draft.random.choices((0, 1, 2, 3, 4), (10, 60, 20, 7, 3))[0]
    for mutation in draft.random.sample(MUTATIONS, count):
        mutation(draft)
        draft.made.append(mutation.__name__)
