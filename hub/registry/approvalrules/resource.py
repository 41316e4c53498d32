"""ApprovalRule, a kind of this project: clusters and requests that are accepted automatically, and how often that happened."""

from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES
from hub.registry.approvalrules import service as approval_rules
from hub.registry.generic.declaration import declared
from hub.registry.generic.definition import ResourceDefinition
from machinery.apiserver.resource import TableRow


def _mode(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return "Paused" if spec.get("paused") is True else "DryRun" if spec.get("dryRun") is True else "Active"


APPROVAL_RULE = ResourceDefinition(declared(APPROVAL_RULES, {"Mode": _mode}), put=approval_rules.put)
