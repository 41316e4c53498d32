"""Audit of requests: the policy that selects requests, the trails that queue records, and the sinks that store records."""

from hub.audit.auditor import Auditor
from hub.audit.policy import AuditPolicy, RequestAuditConfig, default_policy
from hub.audit.recording import DecisionAudit
from hub.audit.sinks import auditing

__all__ = ["AuditPolicy", "Auditor", "DecisionAudit", "RequestAuditConfig", "auditing", "default_policy"]
