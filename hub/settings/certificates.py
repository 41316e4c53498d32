"""Keys and changes of the CAs, the serving certificate, validities and deadlines."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import SECRET, Duration, NoDuration, SettingsGroup


class AuthoritySettings(SettingsGroup):
    """CA keys, CA rotation and the serving certificate."""

    ca_key_place: Literal["file", "database", "secret"] = Field(
        "file",
        description="Where the hub stores the private keys of its CAs. file: in the keys directory, readable by the hub's "
        "user only; database: encrypted with the key for Secrets, which is never stored in the database; "
        "secret: in --ca-key-secret. A key in a file is moved to the new place.",
    )
    ca_key_secret: str | None = Field(
        None,
        description="NAMESPACE/NAME of the Secret for --ca-key-place secret, in the cluster in which the hub runs.",
    )
    ca_rotation_patience: NoDuration = Field(
        timedelta(hours=24),
        description="Time for which each phase of a CA change waits for absent agents, and for operators' certificates of "
        "the old CA. After it an absent agent reconnects with its recovery certificate. `hubctl ca proceed` "
        "ends the wait.",
    )
    serving_cert_file: Path | None = Field(
        None,
        description="Serving certificate of both doors, in PEM, followed by its chain. It replaces the one that the hub "
        "issues. Reloaded when the file changes.",
    )
    serving_key_file: Path | None = Field(None, description="Private key of --serving-cert-file, in PEM.")
    serving_ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM) that verify --serving-cert-file. The hub distributes them to agents and "
        "kubeconfigs in addition to its own CA, which signs client certificates. Reloaded when the file changes.",
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
    """Validity periods, retention and deadlines."""

    agent_lifetime: Duration = Field(timedelta(days=30), description="Validity of an agent's certificate.")
    recovery_lifetime: Duration = Field(timedelta(days=90), description="Validity of an agent's recovery certificate.")
    recovery: Literal["automatic", "manual"] = Field(
        "automatic",
        description="automatic: an agent whose certificate expired while it was offline reconnects with its recovery "
        "certificate. manual: it waits for `hubctl certificate approve`.",
    )
    bootstrap_lifetime: Duration = Field(
        timedelta(hours=1), description="Validity of a bootstrap credential that specifies none."
    )
    serving_lifetime: Duration = Field(timedelta(days=365), description="Validity of the serving certificate of both doors.")
    ca_lifetime: Duration = Field(timedelta(days=3650), description="Validity of the hub's CA.")
    watch_window: Duration = Field(
        timedelta(hours=1), description="Time for which a watch can resume from an old resourceVersion."
    )
    event_lifetime: Duration = Field(timedelta(hours=1), description="Retention of Events after they were last observed.")
    finished_requests: Duration = Field(timedelta(hours=1), description="Retention of decided certificate requests.")
    ended_credentials: Duration = Field(
        timedelta(days=30),
        description="Retention of expired or revoked bootstrap credentials, with the record of their uses.",
    )
    deletion_deadline: Duration = Field(
        timedelta(hours=1),
        description="Objects of a deleted cluster are removed in the order of their priorities. After this time the hub "
        "removes the rest at once, notifies operators and revokes the cluster's certificates. Only `hubctl "
        "delete cluster NAME --force` abandons objects that cannot be removed.",
    )
    start_timeout: Duration = Field(
        timedelta(seconds=60),
        description="Maximum time to open and migrate the database. The complete start, until the doors accept connections, "
        "may take twice as long.",
    )
    livez_grace: NoDuration = Field(
        timedelta(), description="Time after the start in which /livez ignores components that are still starting."
    )
