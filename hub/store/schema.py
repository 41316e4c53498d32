"""The tables as queries see them. Migrations create them; a test keeps both equal.

Instants are microseconds since 1970 in UTC. Keys compare by their bytes on every engine, as in Kubernetes.
"""

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

objects = Table(
    "objects",
    metadata,
    Column("kind", KeyText, primary_key=True),
    Column("namespace", KeyText, primary_key=True),
    Column("name", KeyText, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("revision", Counter, nullable=False),
    Column("created_at", Counter, nullable=False),
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
    Column("value", Counter, nullable=False),
    Column("compacted", Counter, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("revision", Counter, primary_key=True, autoincrement=False),
    Column("at", Counter, nullable=False, index=True),
    Column("actor", Text, nullable=False),
    Column("kind", KeyText, nullable=False),
    Column("namespace", KeyText, nullable=False),
    Column("name", KeyText, nullable=False),
    Column("type", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Column("labels_before", Text, nullable=False),
    Column("fields_before", Text, nullable=False),
    Index(None, "kind", "namespace", "name", "revision"),
)

history = Table(
    "history",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("floor", Counter, nullable=False),
    Column("compacted", Counter, nullable=False),
    Column("measured", Counter, nullable=False),
    Column("bytes", Counter, nullable=False),
)
"""At most one row.

It is valid while its `compacted` equals that of `revision`: an earlier release compacts without updating it and forgets more
than this release.
"""

certificates = Table(
    "certificates",
    metadata,
    Column("serial", Text, primary_key=True),
    Column("purpose", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("groups", Text, nullable=False),
    Column("not_before", Counter, nullable=False),
    Column("not_after", Counter, nullable=False),
    Column("key_hash", Text, nullable=False, index=True),
    Column("issued_at", Counter, nullable=False),
    Column("cluster", Text, index=True),
    Column("agent", Text),
    Column("addon", Text),
    Column("credential", Text, index=True),
    Column("request_uid", Text),
    Column("revoked_at", Counter, index=True),
    Column("revoked_reason", Text),
    Column("signed_by", Text),
    UniqueConstraint("request_uid", "purpose"),
    Index(None, "purpose", "not_after"),
)

credentials = Table(
    "credentials",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster", Text),
    Column("uses", Integer),
    Column("created_at", Counter, nullable=False),
    Column("expires_at", Counter, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("revoked_at", Counter),
    Column("token_hash", Text),
    Column("bounds", Text),
    Column("revoked_by", Text),
    Column("revoked_reason", Text),
)

credential_uses = Table(
    "credential_uses",
    metadata,
    Column("credential", Text, ForeignKey("credentials.id", ondelete="CASCADE"), primary_key=True),
    Column("cluster", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("request", Text, nullable=False),
    Column("held_at", Counter, nullable=False),
    Column("issued_at", Counter),
    Column("serial", Text),
)

attestations = Table(
    "attestations",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("key", Text, nullable=False),
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
    Column("session", Text),
    Column("agent_version", Text),
    Column("epoch", Counter),
    Column("owner", Text),
)
"""`epoch`: the highest one received. `owner`: the hub that the agent reports to instead; null: none known."""

replicas = Table(
    "replicas",
    metadata,
    Column("name", KeyText, primary_key=True),
    Column("home", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("grpc", Text, nullable=False),
    Column("https", Text, nullable=False),
    Column("started_at", Counter, nullable=False),
    Column("seen_at", Counter, nullable=False),
    Column("sessions", Integer, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("drained", Boolean),
    Column("watches", Integer),
    Column("cpu_ms", Integer),
    Column("memory", Counter),
    Column("ahead_us", Counter),
)

sessions = Table(
    "sessions",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("replica", Text, nullable=False, index=True),
    Column("opened_at", Counter, nullable=False, index=True),
)

trusts = Table(
    "trusts",
    metadata,
    Column("cluster", KeyText, primary_key=True),
    Column("agent", KeyText, primary_key=True),
    Column("trusted", Text),
    Column("serial", Text, nullable=False),
    Column("issued_at", Counter, nullable=False),
    Column("not_after", Counter, nullable=False),
    Column("signed_by", Text),
    Column("since", Counter, nullable=False),
)

facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

FORMER = ("audit_anchors",)
"""Tables of earlier schemas, which old databases and backups contain."""

audit = Table(
    "audit",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("sequence", Counter, primary_key=True, autoincrement=False),
    Column("at", Counter, nullable=False),
    Column("user", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "at", "replica", "sequence"),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("cluster", Text, nullable=False),
    Column("uid", Text, nullable=False),
    Column("at", Counter, nullable=False, index=True),
    Column("before", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Index(None, "cluster", "id"),
)

hearing = Table(
    "hearing",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("since", Counter, nullable=False),
    Column("at", Counter, nullable=False),
)

leaders = Table(
    "leaders",
    metadata,
    Column("lock", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("term", Counter, nullable=False),
    Column("transitions", Counter, nullable=False),
    Column("lease_ms", Counter, nullable=False),
    Column("acquired_at", Counter, nullable=False),
    Column("renewed_at", Counter, nullable=False),
    Column("version", Counter, nullable=False),
)

terms = Table(
    "terms",
    metadata,
    Column("lock", Text, primary_key=True),
    Column("term", Counter, nullable=False),
)
"""Separate from `leaders`, so that a renewal does not wait for transactions that hold the term."""

authorities = Table(
    "authorities",
    metadata,
    Column("id", Text, primary_key=True),
    Column("certificate", LargeBinary, nullable=False),
    Column("phase", Text, nullable=False),
    Column("created_at", Counter, nullable=False),
    Column("since", Counter, nullable=False),
    Column("cross_signed", LargeBinary),
    Column("ends_at", Counter),
    Column("wish", Text),
    Column("wished_by", Text),
    Column("compromised", Boolean, nullable=False),
    Column("sealed_key", LargeBinary),
    Column("within_us", Counter),
)
"""`sealed_key`: only if the hub keeps its CA keys in the database; the key that opens it is not in the database."""

authority_followers = Table(
    "authority_followers",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("authority", Text, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("has_key", Boolean, nullable=False),
)
