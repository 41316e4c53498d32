"""Where we differ from the recording on purpose, with the reason. A listed difference that is gone fails the replay."""

from dataclasses import dataclass

SHORTER = "the message says what is wrong without echoing the body, which may hold a secret"
OWN_WORDS = "the message is ours: the original's names Go types or its parser"
PATH_TOLD = "the message also says which field it is"
COMPRESSED = "the document comes compressed to whom takes that, so the answer also varies by Accept-Encoding"
UNSTORED = "nobody owns the fields of an answer that is not stored"
HONEST = "the original answers 500 to a bad request; 400 with a reason is right"

STAMPED = ".spec.taints[0].timeAdded is not recorded"
"""The hub gives every taint its time, as OCM's webhook does; the recorded server had no webhooks."""
OWN_GROUP = "the hub has an API group of its own"

MOVES = "a cluster is moved to another hub by its subresource move"
HISTORY = "what a kind was in the past is read by its subresource history"
NO_ETCD = "the hub's check is named database"
NO_SERVICES = "services can only be read: the hub has none, and kubectl cluster-info asks for them"


@dataclass(frozen=True, slots=True)
class Difference:
    """Aspects (`message`, `status`, ...) of one case that differ on purpose. Not `certain`: it depends on who is faster."""

    case: str
    aspects: tuple[str, ...]
    reason: str
    certain: bool = True


DELIBERATE = (
    Difference("openapi v3 index", ("Content-Type", "Vary"), "it is JSON and says so, and it may be compressed"),
    Difference("openapi v3 index", ("index",), "the pages of all groups are documented, those of custom resources too"),
    Difference("openapi v3 group", ("Vary",), COMPRESSED),
    Difference("openapi v3 group, wrong hash", ("Vary",), COMPRESSED),
    Difference("openapi v3 group, not acceptable", ("Vary",), COMPRESSED),
    Difference("create, broken json", ("message",), SHORTER),
    Difference("create, empty body", ("message",), SHORTER),
    Difference("create, with resourceVersion", ("status", "reason", "code"), HONEST),
    Difference("get, protobuf only", ("Content-Type", "body"), "a refusal of protobuf is readable when it is JSON"),
    Difference("list ?continue=garbage", ("message",), OWN_WORDS),
    Difference(
        "list ?resourceVersion=99999999&resourceVersionMatch=NotOlderThan&timeout=2s",
        ("Content-Type", "object"),
        "a time-out is a complete Status of type application/json",
    ),
    Difference("list ?timeout=1ms", ("status", "Content-Type", "object"), "what is ready in time is answered", certain=False),
    Difference(
        "list ?fieldSelector=spec.hubAcceptsClient%3Dtrue",
        ("status", "kind", "apiVersion", "reason", "code", "message"),
        "the hub selects clusters by their spec, conditions, version and claims too",
    ),
    Difference("watch bad version", ("status", "reason", "code", "message"), HONEST),
    Difference("update, wrong uid", ("message",), "the message has no path into etcd"),
    Difference("json patch, test fails", ("message",), "the message also says which operation does not fit"),
    Difference("json patch, missing path", ("message",), "the message also says which operation does not fit"),
    Difference("json patch, not a list", ("message",), OWN_WORDS),
    Difference("lease bad time", ("message",), PATH_TOLD),
    Difference("secret bad base64", ("message",), PATH_TOLD),
    Difference("ssar", ("object",), UNSTORED),
    Difference("sar denied", ("object",), UNSTORED),
    Difference("token review", ("object",), UNSTORED),
    Difference("token review, bad", ("object",), UNSTORED),
    Difference("ns table", ("table",), "the hub makes its own namespace by itself; the recorded one was made with kubectl"),
    Difference("discovery /", ("paths",), OWN_GROUP),
    Difference("discovery /apis", ("discovery",), OWN_GROUP),
    Difference("discovery, yaml", ("discovery",), OWN_GROUP),
    Difference("aggregated discovery /apis", ("discovery",), OWN_GROUP),
    Difference("openapi v3 index", ("index",), OWN_GROUP),
    Difference("discovery /apis/cluster.open-cluster-management.io/v1", ("discovery",), MOVES),
    Difference("openapi v3 group", ("paths",), MOVES),
    Difference("discovery /apis/addon.open-cluster-management.io/v1beta1", ("discovery",), HISTORY),
    Difference("health /healthz/etcd", ("status", "body"), NO_ETCD),
    Difference("discovery /api/v1", ("discovery",), NO_SERVICES),
    Difference("aggregated discovery /api", ("discovery",), NO_SERVICES),
)


def unexpected(case: str, found: list[str]) -> list[str]:
    """The differences that no one wanted, and the wanted ones that are gone."""
    listed = [difference for difference in DELIBERATE if difference.case == case]
    allowed = {aspect for difference in listed for aspect in difference.aspects}
    certain = {aspect for difference in listed if difference.certain for aspect in difference.aspects}
    told = {difference.partition(":")[0] for difference in found}
    unwanted = [difference for difference in found if difference.partition(":")[0] not in allowed]
    return [*unwanted, *(f"{aspect}: listed as different, but it is as recorded" for aspect in sorted(certain - told))]
