"""What is done to the contents of a request: its subject, its extensions and attributes.

Each function breaks one thing, and says so by its name. Some leave it a good request on purpose: a rule that refuses too much
shows as well.
"""

from collections.abc import Callable

from bench.csrs import der
from bench.csrs.drafts import COMMON_NAME, ORGANIZATION, UNIT, Draft, dns_names, extension, rdns_of
from bench.csrs.world import EDGE, OTHER, WORK
from machinery.identity import (
    AddOnName,
    AgentId,
    ClusterName,
    CredentialId,
    addon_subject,
    agent_subject,
    bootstrap_subject,
    recovery_subject,
)

STRANGE = (
    "",
    " ",
    "\0",
    "a\0b",
    "é",
    "😀",
    "\u202e",
    "A" * 65,
    "x" * 2000,
    "system:masters",
    "*",
    "%s%n",
    "../..",
    "'--",
    "\n",
    "e\u0301",
)
STRING_TAGS = (der.UTF8, der.PRINTABLE, der.TELETEX, der.IA5, der.UNIVERSAL, der.BMP, der.OCTETS, der.NULL, 0x1A, 0x1B, 0x80)
OTHER_ATTRIBUTES = (
    "2.5.4.6",
    "2.5.4.5",
    "2.5.4.12",
    "1.2.840.113549.1.9.1",
    "0.9.2342.19200300.100.1.25",
    "2.5.4.45",
    "1.3.6.1.4.1.99999.7",
)
EXTENSION_OIDS = (
    "2.5.29.15",
    "2.5.29.19",
    "2.5.29.37",
    "2.5.29.14",
    "2.5.29.35",
    "2.5.29.30",
    "2.5.29.32",
    "2.5.29.31",
    "1.3.6.1.5.5.7.1.1",
    "1.3.6.1.5.5.7.1.24",
    "1.3.6.1.4.1.11129.2.4.3",
    "1.3.6.1.4.1.99999.8",
)
CA_TRUE = der.sequence(der.Node(0x01, b"\xff")).encoded()
EVERY_USAGE = der.bits(b"\xff\x80", 7).encoded()
ANY_USE = der.sequence(der.oid("2.5.29.37.0"), der.oid("1.3.6.1.5.5.7.3.1"), der.oid("1.3.6.1.5.5.7.3.3")).encoded()


# The subject.


def subject_of_another(draft: Draft) -> None:
    agent = AgentId("agent-1")
    draft.rdns = rdns_of(
        draft.random.choice(
            (
                agent_subject(OTHER, agent),
                agent_subject(EDGE, AgentId("agent-2")),
                agent_subject(ClusterName(draft.cluster + "x"), draft.agent),
                agent_subject(ClusterName(draft.cluster[:-1] or "y"), draft.agent),
                recovery_subject(draft.cluster, draft.agent),
                addon_subject(OTHER, WORK, "work"),
                addon_subject(EDGE, AddOnName("worker"), "work"),
                bootstrap_subject(draft.world.victim.credential or CredentialId("")),
            )
        )
    )


def subject_of_an_operator(draft: Draft) -> None:
    draft.rdns.append([(ORGANIZATION, der.text("system:masters"))])


def subject_one_more_value(draft: Draft) -> None:
    kind = draft.random.choice((COMMON_NAME, ORGANIZATION, UNIT, *OTHER_ATTRIBUTES))
    value = der.text(draft.random.choice(STRANGE), draft.random.choice(STRING_TAGS))
    if draft.rdns and draft.random.random() < 0.5:
        draft.random.choice(draft.rdns).append((kind, value))
    else:
        draft.rdns.insert(draft.random.randint(0, len(draft.rdns)), [(kind, value)])


def subject_a_value_less(draft: Draft) -> None:
    if draft.rdns:
        rdn = draft.random.choice(draft.rdns)
        rdn.pop(draft.random.randrange(len(rdn))) if rdn else draft.rdns.remove(rdn)


def subject_a_value_twice(draft: Draft) -> None:
    if draft.rdns:
        draft.rdns.append(list(draft.random.choice(draft.rdns)))


def subject_spelled_otherwise(draft: Draft) -> None:
    """Other string types over the same words, and words that look like these."""
    for index, rdn in enumerate(draft.rdns):
        draft.rdns[index] = [(kind, _respelled(draft, value)) for kind, value in rdn]


def _respelled(draft: Draft, value: der.Node) -> der.Node:
    words = value.content.decode("latin-1")
    tricks: tuple[Callable[[str], str], ...] = (
        str,
        str,
        str.upper,
        lambda w: w + " ",
        lambda w: w + "\0",
        lambda w: w.replace("e", "\u0435"),
    )
    return der.text(draft.random.choice(tricks)(words), draft.random.choice(STRING_TAGS))


def subject_divided_otherwise(draft: Draft) -> None:
    every = [entry for rdn in draft.rdns for entry in rdn]
    draft.random.shuffle(every)
    draft.rdns = [[entry] for entry in every] if draft.random.random() < 0.5 else [every]


def subject_with_very_much(draft: Draft) -> None:
    count = draft.random.choice((10, 30, 100, 400))
    draft.rdns.append(
        [(draft.random.choice((ORGANIZATION, UNIT, COMMON_NAME)), der.text(f"g{number}")) for number in range(count)]
    )


# Extensions and attributes.


def extension_of_power(draft: Draft) -> None:
    wanted = (("2.5.29.19", CA_TRUE), ("2.5.29.15", EVERY_USAGE), ("2.5.29.37", ANY_USE))
    for dotted, value in draft.random.sample(wanted, draft.random.randint(1, 3)):
        draft.extensions.append(extension(dotted, value, critical=draft.random.random() < 0.5))


def extension_of_any_kind(draft: Draft) -> None:
    content = draft.random.choice(
        (b"", b"\x05\x00", CA_TRUE, draft.random.randbytes(draft.random.randrange(40)), der.nested(30).encoded())
    )
    draft.extensions.append(extension(draft.random.choice(EXTENSION_OIDS), content, critical=draft.random.random() < 0.3))


def extension_names(draft: Draft) -> None:
    names = (
        "hub.example",
        "localhost",
        "*.example",
        f"{WORK}.addon.open-cluster-management.io",
        "a" * 300,
        "",
        "é.example",
        "a\0b",
    )
    draft.extensions.append(dns_names(*draft.random.sample(names, draft.random.randint(1, 4))))


def extension_names_of_other_kinds(draft: Draft) -> None:
    tag = draft.random.choice((0x81, 0x86, 0x87, 0x88, 0xA0, 0xA3, 0xA4, 0xA5, 0x89, 0x00))
    content = draft.random.choice((b"a@b.example", b"\x7f\0\0\1", b"\0" * 16, b"\0" * 5, b"spiffe://x/y", b"\xff\xfe", b""))
    draft.extensions.append(extension("2.5.29.17", der.sequence(der.Node(tag, content)).encoded()))


def extension_twice(draft: Draft) -> None:
    draft.extensions += [node.copied() for node in draft.extensions or [dns_names("a.example")] * 2]


def attribute_of_any_kind(draft: Draft) -> None:
    kinds = ("1.2.840.113549.1.9.14", "1.2.840.113549.1.9.7", "1.3.6.1.4.1.311.2.1.14", "1.3.6.1.4.1.99999.9")
    values = (
        der.set_of(),
        der.text("secret"),
        der.set_of(der.sequence()),
        der.set_of(dns_names("x")),
        der.nested(20),
        der.Node(der.NULL),
    )
    draft.attributes.append(der.sequence(der.oid(draft.random.choice(kinds)), draft.random.choice(values)))


def attribute_very_large(draft: Draft) -> None:
    size = draft.random.choice((1000, 8000, 11_000, 12_000, 16_000, 70_000))
    draft.attributes.append(der.sequence(der.oid("1.3.6.1.4.1.99999.9"), der.set_of(der.octets(b"\0" * size))))


ALL = (
    subject_of_another,
    subject_of_an_operator,
    subject_one_more_value,
    subject_a_value_less,
    subject_a_value_twice,
    subject_spelled_otherwise,
    subject_divided_otherwise,
    subject_with_very_much,
    extension_of_power,
    extension_of_any_kind,
    extension_names,
    extension_names_of_other_kinds,
    extension_twice,
    attribute_of_any_kind,
    attribute_very_large,
)
