"""Settings of CA keys, CA rotation and the serving certificate, and of validity periods and deadlines."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import ValidationInfo, field_validator

from hub.settings.fields import Duration, NoDuration, SecretName, SettingsGroup


class AuthoritySettings(SettingsGroup):
    """CA keys, CA rotation and the serving certificate."""

    ca_key_place: Literal["file", "database", "secret"] = "file"
    """Where the hub stores the private keys of its CAs. file: in the keys directory, readable by the hub's user only; database:
    encrypted with the key for Secrets, which is never stored in the database; secret: in --ca-key-secret. The hub copies a key
    in a file to the new place."""
    ca_key_secret: SecretName = None
    """NAMESPACE/NAME of the Secret for --ca-key-place secret, in the cluster in which the hub runs."""
    ca_rotation_patience: NoDuration = timedelta(hours=24)
    """Time for which each phase of a CA change waits for absent agents, and for operators' certificates of the old CA. Later an
    absent agent reconnects with its recovery certificate. `hubctl ca proceed` ends the wait."""
    serving_cert_file: Path | None = None
    """Serving certificate of both servers, in PEM, followed by its chain, instead of a certificate of the hub's CA. The hub
    reloads a changed file."""
    serving_key_file: Path | None = None
    """Private key of --serving-cert-file, in PEM."""
    serving_ca_file: Path | None = None
    """CA certificates (PEM) that verify --serving-cert-file. The hub distributes them to agents and kubeconfigs in addition to
    its own CA, which signs client certificates. The hub reloads a changed file."""

    @field_validator("ca_key_secret")
    @classmethod
    def _is_set_for_a_secret(cls, secret: str | None, seen: ValidationInfo) -> str | None:
        if secret is None and seen.data.get("ca_key_place") == "secret":
            raise ValueError("--ca-key-place secret needs it: the Secret, as NAMESPACE/NAME")
        return secret

    @field_validator("serving_key_file")
    @classmethod
    def _both_or_none(cls, key: Path | None, seen: ValidationInfo) -> Path | None:
        if (key is None) != (seen.data.get("serving_cert_file") is None):
            raise ValueError("set both serving_cert_file and serving_key_file, or none of them")
        return key


class LifetimeSettings(SettingsGroup):
    """Validity periods, retention and deadlines."""

    agent_lifetime: Duration = timedelta(days=30)
    """Validity of an agent's certificate."""
    recovery_lifetime: Duration = timedelta(days=90)
    """Validity of an agent's recovery certificate."""
    recovery: Literal["automatic", "manual"] = "automatic"
    """automatic: an agent whose certificate expired while it was offline reconnects with its recovery certificate. manual: such
    an agent waits for `hubctl certificate approve`."""
    bootstrap_lifetime: Duration = timedelta(hours=1)
    """Validity of a bootstrap credential that is created without a validity."""
    serving_lifetime: Duration = timedelta(days=365)
    """Validity of the serving certificate of both servers."""
    ca_lifetime: Duration = timedelta(days=3650)
    """Validity of the hub's CA."""
    watch_window: Duration = timedelta(hours=1)
    """Time for which a watch can resume from an old resourceVersion."""
    event_lifetime: Duration = timedelta(hours=1)
    """Retention of Events after they were last observed."""
    finished_requests: Duration = timedelta(hours=1)
    """Retention of decided certificate requests."""
    ended_credentials: Duration = timedelta(days=30)
    """Retention of expired or revoked bootstrap credentials, with the record of their uses."""
    deletion_deadline: Duration = timedelta(hours=1)
    """Objects of a deleted cluster are removed in the order of their priorities. After this time, but not just after a start of
    the hub or a jump of its clock, the hub removes all remaining objects, notifies operators and revokes the cluster's
    certificates. Only `hubctl delete cluster NAME --force` abandons objects that cannot be removed."""
    start_timeout: Duration = timedelta(seconds=60)
    """Maximum time to open and migrate the database. The complete start, until the hub accepts connections, may take twice as
    long."""
    livez_grace: NoDuration = timedelta()
    """Time after the start in which /livez ignores components that are still starting."""
