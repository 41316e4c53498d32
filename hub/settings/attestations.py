"""What a first registration must prove of itself."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from hub.settings.group import Group


class Attestations(Group):
    """A token of the managed cluster's own issuer, which binds a cluster's name to it."""

    attestation: Literal["by-credential", "required"] = Field(
        "by-credential",
        description="Whether a cluster proves who it is where its bootstrap credential demands it, or at every first "
        "registration. Agents that come over the Kubernetes API alone cannot, and are shut out by `required`.",
    )
    attestation_issuers: Path | None = Field(
        None,
        description="A YAML file with the issuers (OpenID Connect) of managed clusters, for credentials that name none; read "
        "at each registration. See docs/how-to/bootstrap-credentials.md.",
    )
    attestation_audience: str = Field(
        "", description="For whom clusters' tokens must be. Empty: urn:uuid:<the hub's id>, so that no other hub can use them."
    )
