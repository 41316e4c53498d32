"""Keys and changes of the CAs, the serving certificate, validities and deadlines."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import SECRET, Duration, NoDuration, SettingsGroup


class AuthoritySettings(SettingsGroup):
    """The hub's CAs, and what the doors show."""

    ca_key_place: Literal["file", "database", "secret"] = Field(
        "file",
        description="Where the keys of the hub's CAs are kept. file: beside the other keys, for this user alone; database: "
        "there, sealed with the key for Secrets, which is never in it; secret: in --ca-key-secret. One in files moves over.",
    )
    ca_key_secret: str | None = Field(
        None,
        description="NAMESPACE/NAME of the Secret for --ca-key-place secret, in the cluster that the hub runs in.",
    )
    ca_rotation_patience: NoDuration = Field(
        timedelta(hours=24),
        description="A change of CA waits this long in each phase for agents that are away, and for certificates "
        "of the old CA that operators have. Later an agent comes back with its recovery certificate; `hubctl ca proceed` "
        "does not wait.",
    )
    serving_cert_file: Path | None = Field(
        None,
        description="The certificate that both doors show, in PEM with the chain after it, in place of one that the hub makes. "
        "Read again whenever it changes.",
    )
    serving_key_file: Path | None = Field(None, description="Its private key in PEM.")
    serving_ca_file: Path | None = Field(
        None,
        description="The CAs (PEM) by which --serving-cert-file is trusted: agents and kubeconfigs are told them beside the "
        "hub's own, which sign client certificates. Read again whenever it changes.",
    )

    @field_validator("ca_key_secret")
    @classmethod
    def _names_a_secret(cls, secret: str | None, seen: ValidationInfo) -> str | None:
        if secret is not None and not SECRET.fullmatch(secret):
            raise ValueError(f'"{secret}" names no Secret: write NAMESPACE/NAME')
        if secret is None and seen.data.get("ca_key_place") == "secret":
            raise ValueError("--ca-key-place secret needs it: which Secret, as NAMESPACE/NAME")
        return secret

    @field_validator("serving_key_file")
    @classmethod
    def _both_or_none(cls, key: Path | None, seen: ValidationInfo) -> Path | None:
        if (key is None) != (seen.data.get("serving_cert_file") is None):
            raise ValueError("a serving certificate of your own is two files: serving_cert_file and serving_key_file")
        return key


class LifetimeSettings(SettingsGroup):
    """Validities, retention, deadlines."""

    agent_lifetime: Duration = Field(timedelta(days=30), description="Validity of an agent's certificate.")
    recovery_lifetime: Duration = Field(timedelta(days=90), description="Validity of the recovery certificate beside it.")
    recovery: Literal["automatic", "manual"] = Field(
        "automatic",
        description="Whether an agent whose certificate expired while it was off comes back with its recovery certificate by "
        "itself, or waits for `hubctl certificate approve`.",
    )
    bootstrap_lifetime: Duration = Field(timedelta(hours=1), description="Validity of a bootstrap credential, unless it says.")
    serving_lifetime: Duration = Field(timedelta(days=365), description="Validity of the doors' certificate.")
    ca_lifetime: Duration = Field(timedelta(days=3650), description="Validity of the hub's CA.")
    watch_window: Duration = Field(timedelta(hours=1), description="A watch can resume from changes as old as this.")
    event_lifetime: Duration = Field(timedelta(hours=1), description="Events are kept this long after they were last seen.")
    finished_requests: Duration = Field(timedelta(hours=1), description="Decided certificate requests are kept this long.")
    ended_credentials: Duration = Field(
        timedelta(days=30),
        description="Bootstrap credentials that expired or were revoked, and the record of their uses, are kept this long.",
    )
    deletion_deadline: Duration = Field(
        timedelta(hours=1),
        description="What belongs to a deleted cluster goes in the order of its priorities; after this long all of it at once, "
        "an operator is told, and its certificates are revoked at the latest. "
        "Nothing is given up but with `hubctl delete cluster NAME --force`.",
    )
    start_timeout: Duration = Field(
        timedelta(seconds=60),
        description="Opening and migrating the database may take this long, and everything until the doors open twice as long.",
    )
    livez_grace: NoDuration = Field(
        timedelta(), description="For this long after a start /livez passes over what has not finished starting."
    )
