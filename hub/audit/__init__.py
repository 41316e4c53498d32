"""Audit of requests: the policy that selects them, the trails that take records, and the sinks that store them."""

from hub.audit.auditor import Auditor
from hub.audit.policy import AuditPolicy, AuditVerdict, default_policy
from hub.audit.recording import DecisionAudit
from hub.audit.sinks import auditing

__all__ = ["AuditPolicy", "AuditVerdict", "Auditor", "DecisionAudit", "auditing", "default_policy"]
