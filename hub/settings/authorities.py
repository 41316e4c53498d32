"""Where the keys of the hub's CAs lie, how a change of CA goes, and which certificate the doors show."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import NoDuration
from hub.settings.group import SECRET, SettingsGroup


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
