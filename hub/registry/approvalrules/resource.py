"""ApprovalRule, a kind of this project: clusters and requests that are accepted automatically, and how often that happened."""

from hub.api.approvalrules import CLUSTER_FIELDS, RequesterKind, RuleAction
from hub.api.meta import document as doc
from hub.registry.approvalrules import service as approval_rules
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITIONS,
    FLAG,
    INT64,
    LABEL_EXPRESSION,
    MATCH_LABELS,
    MOMENT,
    NAME,
    OBSERVED_GENERATION,
    TEXT,
    age_cell,
    cell,
    described,
    listing,
    record,
    words,
)
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow

_GLOB = {**TEXT, "maxLength": 63, "pattern": r"^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$"}
_SELECTOR = {
    **record(
        "Labels of the cluster.",
        matchLabels=MATCH_LABELS,
        matchExpressions=listing(LABEL_EXPRESSION, description="Requirements on labels; all must be met."),
    ),
    "x-kubernetes-map-type": "atomic",
}
_REQUESTER = record(
    "A requester.",
    ("kind",),
    kind={
        **TEXT,
        "enum": [str(each) for each in RequesterKind],
        "description": "How the requester authenticated. Agent: the cluster's own agent, which renews its certificate.",
    },
    name=described(TEXT, "Id of the credential, or name of the user or group; empty: any of the kind."),
)
_SPEC = record(
    'The rule applies if all its fields match. At least one is required; clusterNames: ["*"] matches all clusters.',
    ("decides",),
    decides={
        **listing({**TEXT, "enum": [str(each) for each in RuleAction]}),
        "minItems": 1,
        "description": "Accept: accept the cluster (hubAcceptsClient). Approve: approve its agent's first certificate request.",
    },
    requesters=listing(
        _REQUESTER,
        description="Accepted requesters of the certificate. Empty: any bootstrap credential, and clusters are accepted also "
        "without a certificate request.",
    ),
    clusterNames=listing(_GLOB, description="Patterns for the cluster's whole name; * is any text and ? one character."),
    clusterSelector=_SELECTOR,
    condition={
        **TEXT,
        "maxLength": 4096,
        "description": 'A condition such as labels["region"] == "eu" && requester.user.endsWith("-ci"). A comparison '
        f"with a missing value does not hold. Fields: {CLUSTER_FIELDS.described()}.",
    },
    dryRun=described(
        FLAG, "Record what would be decided, as a condition, an Event, an audit record and in the counts, and decide nothing."
    ),
    paused=described(FLAG, "The rule does not apply for now."),
)
_STATUS = record(
    "Decisions of the rule. If the hub is killed, the counts may miss the last second.",
    accepted=described(INT64, "Accepted clusters."),
    approved=described(INT64, "Approved certificate requests."),
    wouldAccept=described(INT64, "Clusters that a dry run would have accepted."),
    wouldApprove=described(INT64, "Certificate requests that a dry run would have approved."),
    matched=described(INT64, "The sum of these counts."),
    lastMatched=described(MOMENT, "When the rule last matched."),
    last=record(
        "The newest decision.",
        decision=described(NAME, "Accept or Approve."),
        cluster=described(TEXT, "The cluster."),
        dryRun=described(FLAG, "Whether it was a dry run."),
    ),
    observedGeneration=OBSERVED_GENERATION,
    conditions=described(CONDITIONS, "conditions: Active."),
)
SCHEMA = record(
    "ApprovalRule accepts clusters and approves their first certificates automatically. It never denies: without a "
    "matching rule an operator decides, and what an operator has denied stays denied.",
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
    Column("Matched", _MATCHED, type="integer", description="Number of its decisions, including dry runs."),
    Column("Last Match", age_cell("status", "lastMatched", absent="<never>"), description="Age of its newest decision."),
    Column("Names", words("spec", "clusterNames"), description="Patterns of cluster names.", priority=1),
    Column("Condition", cell("spec", "condition"), description="The condition.", priority=1),
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
