"""Protocols of everything that use cases and servers need from outside: database, CAs, keys, the hosting Kubernetes cluster.

Adapters implement them; `hub.composition` connects the two. The store is split by subject, so that a use case names what it
uses. All methods of a `Transaction` are synchronous and run on a thread of the pool; `Store` is the asynchronous interface
around it. Import ports from this package.
"""

from hub.ports.identities import (
    AuthorityRecords,
    Bindings,
    CertificateRecords,
    Credentials,
    Issuer,
    KeyPair,
    KeyPlace,
    KeySecret,
    ListSigner,
    LoginIssuer,
    Trusts,
)
from hub.ports.liveness import AgentSessions, Heartbeats, Marks, Replicas, Transitions
from hub.ports.objects import ChangeLog, Objects, Written
from hub.ports.store import RECORDING, AuditLog, Facts, LeaderLockConnection, Leaders, Recording, Store, Transaction

__all__ = [
    "RECORDING",
    "AgentSessions",
    "AuditLog",
    "AuthorityRecords",
    "Bindings",
    "CertificateRecords",
    "ChangeLog",
    "Credentials",
    "Facts",
    "Heartbeats",
    "Issuer",
    "KeyPair",
    "KeyPlace",
    "KeySecret",
    "LeaderLockConnection",
    "Leaders",
    "ListSigner",
    "LoginIssuer",
    "Marks",
    "Objects",
    "Recording",
    "Replicas",
    "Store",
    "Transaction",
    "Transitions",
    "Trusts",
    "Written",
]
