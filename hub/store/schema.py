"""The tables, as queries see them and as the first migration creates them.

Instants are microseconds since 1970 in UTC. Keys compare by their bytes on every engine, as in Kubernetes.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

KeyText = Text().with_variant(Text(collation="C"), "postgresql")
Counter = BigInteger().with_variant(Integer(), "sqlite")


def columns(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, **options) for name in names]


objects = Table(
    "objects",
    metadata,
    *columns(KeyText, "kind", "namespace", "name", primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    *columns(Counter, "revision", "created_at", nullable=False),
    Column("document", LargeBinary, nullable=False),
)

labels = Table(
    "labels",
    metadata,
    Column("uid", Text, ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Index(None, "name", "value", "uid"),
)

fields = Table(
    "fields",
    metadata,
    Column("uid", Text, ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("sort", KeyText),
    Index(None, "name", "value", "uid"),
)
"""`sort`: the comparison key of versions and quantities; null for texts."""

revision = Table(
    "revision",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *columns(Counter, "value", "compacted", "floor", "measured", "bytes", nullable=False),
)
"""One row. `value`: the newest revision; the other columns: see `hub.api.history.Ledger`."""

changes = Table(
    "changes",
    metadata,
    Column("revision", Counter, primary_key=True, autoincrement=False),
    Column("at", Counter, nullable=False, index=True),
    Column("actor", Text, nullable=False),
    *columns(KeyText, "kind", "namespace", "name", nullable=False),
    Column("type", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    *columns(Text, "labels_before", "fields_before", nullable=False),
    Index(None, "kind", "namespace", "name", "revision"),
)

certificates = Table(
    "certificates",
    metadata,
    Column("serial", Text, primary_key=True),
    *columns(Text, "purpose", "user", "groups", nullable=False),
    *columns(Counter, "not_before", "not_after", nullable=False),
    Column("key_hash", Text, nullable=False, index=True),
    Column("issued_at", Counter, nullable=False),
    Column("cluster", Text, index=True),
    *columns(Text, "agent", "addon"),
    Column("credential", Text, index=True),
    Column("request_uid", Text),
    Column("revoked_at", Counter, index=True),
    Column("revoked_reason", Text),
    Column("signed_by", Text, nullable=False),
    UniqueConstraint("request_uid", "purpose"),
    Index(None, "purpose", "not_after"),
)

credentials = Table(
    "credentials",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster", Text),
    Column("uses", Integer),
    *columns(Counter, "created_at", "expires_at", nullable=False),
    Column("created_by", Text, nullable=False),
    Column("revoked_at", Counter),
    *columns(Text, "token_hash", "bounds", "revoked_by", "revoked_reason"),
)

credential_uses = Table(
    "credential_uses",
    metadata,
    Column("credential", Text, ForeignKey("credentials.id", ondelete="CASCADE"), primary_key=True),
    *columns(Text, "cluster", "agent", primary_key=True),
    Column("request", Text, nullable=False),
    Column("held_at", Counter, nullable=False),
    Column("issued_at", Counter),
    Column("serial", Text),
)

attestations = Table(
    "attestations",
    metadata,
    Column("cluster", Text, primary_key=True),
    *columns(Text, "issuer", "subject", "key", nullable=False),
    Column("bound_at", Counter, nullable=False),
)

admissions = Table(
    "admissions",
    metadata,
    Column("credential", Text, ForeignKey("credentials.id", ondelete="CASCADE"), primary_key=True),
    Column("cluster", Text, primary_key=True),
    Column("at", Counter, nullable=False),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("at", Counter),
    Column("available", Boolean),
    *columns(Text, "session", "agent_version"),
    Column("epoch", Counter),
    Column("owner", Text),
)
"""`epoch`: the highest received epoch. `owner`: the other hub that the agent uses; null: no other hub is known."""

replicas = Table(
    "replicas",
    metadata,
    Column("name", KeyText, primary_key=True),
    *columns(Text, "home", "instance", "version", "grpc", "https", nullable=False),
    *columns(Counter, "started_at", "seen_at", nullable=False),
    Column("sessions", Integer, nullable=False),
    *columns(Boolean, "ready", "draining", "drained", nullable=False),
    *columns(Integer, "watches", "cpu_ms", nullable=False),
    *columns(Counter, "memory", "ahead_us", nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    *columns(Text, "cluster", "agent", primary_key=True),
    Column("session", Text, nullable=False),
    Column("replica", Text, nullable=False, index=True),
    Column("opened_at", Counter, nullable=False, index=True),
)

trusts = Table(
    "trusts",
    metadata,
    *columns(KeyText, "cluster", "agent", primary_key=True),
    Column("trusted", Text),
    Column("serial", Text, nullable=False),
    *columns(Counter, "issued_at", "not_after", nullable=False),
    Column("signed_by", Text, nullable=False),
    Column("since", Counter, nullable=False),
)

facts = Table("facts", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

audit = Table(
    "audit",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("sequence", Counter, primary_key=True, autoincrement=False),
    Column("at", Counter, nullable=False),
    *columns(Text, "user", "verb", "resource", "namespace", "name", nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "at", "replica", "sequence"),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    *columns(Text, "cluster", "uid", nullable=False),
    Column("at", Counter, nullable=False, index=True),
    *columns(Text, "before", "status", "reason", "actor", nullable=False),
    Index(None, "cluster", "id"),
)

hearing = Table(
    "hearing", metadata, Column("replica", Text, primary_key=True), *columns(Counter, "since", "at", nullable=False)
)

leaders = Table(
    "leaders",
    metadata,
    Column("lock", Text, primary_key=True),
    *columns(Text, "holder", "incarnation", nullable=False),
    *columns(Counter, "term", "transitions", "lease_ms", "acquired_at", "renewed_at", "version", nullable=False),
)

terms = Table("terms", metadata, Column("lock", Text, primary_key=True), Column("term", Counter, nullable=False))
"""Separate from `leaders`, so that a renewal does not wait for transactions that lock the term."""

authorities = Table(
    "authorities",
    metadata,
    Column("id", Text, primary_key=True),
    Column("certificate", LargeBinary, nullable=False),
    Column("phase", Text, nullable=False),
    *columns(Counter, "created_at", "since", nullable=False),
    Column("cross_signed", LargeBinary),
    Column("ends_at", Counter),
    *columns(Text, "order", "ordered_by"),
    Column("compromised", Boolean, nullable=False),
    Column("sealed_key", LargeBinary),
    Column("within_us", Counter),
)
"""`sealed_key`: only if the hub keeps its CA keys in the database; the key that opens it is not in the database."""

authority_followers = Table(
    "authority_followers",
    metadata,
    *columns(Text, "replica", "authority", primary_key=True),
    Column("phase", Text, nullable=False),
    Column("has_key", Boolean, nullable=False),
)
