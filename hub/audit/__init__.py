"""Audit of requests: the policy that selects them, the trails that take records, and the sinks that store them."""

from hub.audit.auditor import Auditor
from hub.audit.decisions import DecisionAudit
from hub.audit.default_policy import default_policy
from hub.audit.policy import AuditPolicy, AuditVerdict
from hub.audit.setup import auditing

__all__ = ["AuditPolicy", "AuditVerdict", "Auditor", "DecisionAudit", "auditing", "default_policy"]
