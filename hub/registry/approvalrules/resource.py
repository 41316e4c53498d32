"""ApprovalRule, a kind of this project: clusters and requests that are accepted automatically, and how often that happened."""

from hub.api.approvalrules import CLUSTER_FIELDS, RequesterKind, RuleVerdict
from hub.api.meta import document as doc
from hub.registry.approvalrules import service as approval_rules
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import CONDITIONS, MOMENT, NAME, TEXT, Schema, described, listing, record
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow, age_of

_TRUTH: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "format": "int64"}
_GLOB: Schema = {**TEXT, "maxLength": 63, "pattern": r"^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$"}
_EXPRESSION = record("", ("key", "operator"), key=TEXT, operator=TEXT, values=listing(TEXT))
_SELECTOR: Schema = {
    **record(
        "clusterSelector chooses clusters by their labels.",
        matchLabels={"type": "object", "additionalProperties": TEXT},
        matchExpressions=listing(_EXPRESSION),
    ),
    "x-kubernetes-map-type": "atomic",
}
_REQUESTER = record(
    "",
    ("kind",),
    kind={
        **TEXT,
        "enum": [str(each) for each in RequesterKind],
        "description": "What the requester came with. Agent: the cluster's own agent, which renews its certificate.",
    },
    name=described(TEXT, "The id of the credential, or the user's or group's whole name. Without it any of the kind."),
)
_SPEC = record(
    'All that a rule names must fit. It must name something: a rule for every cluster says so, as clusterNames: ["*"].',
    ("decides",),
    decides={
        **listing({**TEXT, "enum": [str(each) for each in RuleVerdict]}),
        "minItems": 1,
        "description": "Accept: the cluster may join (hubAcceptsClient). Approve: its agent's first certificate is signed.",
    },
    requesters=listing(
        _REQUESTER,
        description="Who must have asked for the certificate. Without any: whoever holds a bootstrap credential; and a cluster "
        "is then accepted whether or not a certificate was asked for.",
    ),
    clusterNames=listing(_GLOB, description="The cluster's whole name: a shell pattern with * and ?."),
    clusterSelector=_SELECTOR,
    condition={
        **TEXT,
        "maxLength": 4096,
        "description": 'A condition such as labels["region"] == "eu" && requester.user.endsWith("-ci"). What is missing is '
        f"unknown, and what is unknown does not hold. Fields: {CLUSTER_FIELDS.described()}.",
    },
    dryRun=described(_TRUTH, "Only say what would be decided: a condition, an Event, an audit record, the counts."),
    paused=described(_TRUTH, "Decide nothing for now."),
)
_STATUS = record(
    "What the rule has decided. What a kill of the hub loses of the counts is a second's worth.",
    accepted=_COUNT,
    approved=_COUNT,
    wouldAccept=_COUNT,
    wouldApprove=_COUNT,
    matched=described(_COUNT, "All of them together."),
    lastMatched=MOMENT,
    last=record("The newest decision.", decision=NAME, cluster=TEXT, dryRun=_TRUTH),
    observedGeneration=_COUNT,
    conditions=CONDITIONS,
)
SCHEMA: Schema = record(
    "ApprovalRule accepts clusters and approves their first certificates without a human. It never denies: what no rule is for "
    "waits for an operator, and what an operator has denied stays denied.",
    ("spec",),
    spec=_SPEC,
    status=_STATUS,
)


def _mode(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return "Paused" if spec.get("paused") is True else "DryRun" if spec.get("dryRun") is True else "Active"


def _decides(row: TableRow) -> str:
    return ",".join(map(str, doc.sequence(row.document, "spec", "decides")))


def _matched(row: TableRow) -> int:
    return int(doc.mapping(row.document, "status").get("matched") or 0)


def _last(row: TableRow) -> str:
    moment = doc.mapping(row.document, "status").get("lastMatched")
    return age_of(moment, row.now) if moment else "<never>"


def _names(row: TableRow) -> str:
    return ",".join(map(str, doc.sequence(row.document, "spec", "clusterNames")))


COLUMNS = (
    Column("Decides", _decides, description="Accept, Approve or both."),
    Column("Mode", _mode, description="Active, DryRun or Paused."),
    Column("Matched", _matched, type="integer", description="How many decisions it has made, dry ones included."),
    Column("Last Match", _last, description="How long ago the newest was."),
    Column("Names", _names, description="Patterns of clusters' names.", priority=1),
    Column(
        "Condition", lambda row: doc.mapping(row.document, "spec").get("condition"), description="Its condition.", priority=1
    ),
    AGE,
)


APPROVAL_RULE = ResourceDefinition(
    Resource(
        group="hub",
        version="v1alpha1",
        name="approvalrules",
        kind="ApprovalRule",
        short_names=("aprule", "aprules"),
        schema=SCHEMA,
        subresources=(STATUS,),
        columns=COLUMNS,
        counts_generations=True,
    ),
    put=approval_rules.put,
)
