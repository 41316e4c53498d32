"""ApprovalRule, a kind of this project: clusters and requests that are accepted automatically, and how often that happened."""

from hub.api.approvalrules import CLUSTER_FIELDS, RequesterKind, RuleVerdict
from hub.api.meta import document as doc
from hub.registry.approvalrules import service as approval_rules
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITIONS,
    FLAG,
    INT64,
    MOMENT,
    NAME,
    TEXT,
    TEXT_MAP,
    TEXTS,
    age_cell,
    cell,
    described,
    listing,
    record,
    words,
)
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow

_GLOB = {**TEXT, "maxLength": 63, "pattern": r"^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$"}
_EXPRESSION = record("", ("key", "operator"), key=TEXT, operator=TEXT, values=TEXTS)
_SELECTOR = {
    **record("clusterSelector chooses clusters by their labels.", matchLabels=TEXT_MAP, matchExpressions=listing(_EXPRESSION)),
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
    dryRun=described(FLAG, "Only say what would be decided: a condition, an Event, an audit record, the counts."),
    paused=described(FLAG, "Decide nothing for now."),
)
_STATUS = record(
    "What the rule has decided. What a kill of the hub loses of the counts is a second's worth.",
    accepted=INT64,
    approved=INT64,
    wouldAccept=INT64,
    wouldApprove=INT64,
    matched=described(INT64, "All of them together."),
    lastMatched=MOMENT,
    last=record("The newest decision.", decision=NAME, cluster=TEXT, dryRun=FLAG),
    observedGeneration=INT64,
    conditions=CONDITIONS,
)
SCHEMA = record(
    "ApprovalRule accepts clusters and approves their first certificates without a human. It never denies: what no rule is for "
    "waits for an operator, and what an operator has denied stays denied.",
    ("spec",),
    spec=_SPEC,
    status=_STATUS,
)


def _mode(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return "Paused" if spec.get("paused") is True else "DryRun" if spec.get("dryRun") is True else "Active"


_MATCHED = cell("status", "matched", absent=0)
COLUMNS = (
    Column("Decides", words("spec", "decides"), description="Accept, Approve or both."),
    Column("Mode", _mode, description="Active, DryRun or Paused."),
    Column("Matched", _MATCHED, type="integer", description="How many decisions it has made, dry ones included."),
    Column("Last Match", age_cell("status", "lastMatched", absent="<never>"), description="How long ago the newest was."),
    Column("Names", words("spec", "clusterNames"), description="Patterns of clusters' names.", priority=1),
    Column("Condition", cell("spec", "condition"), description="Its condition.", priority=1),
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
