"""What a first registration must prove of itself."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from hub.settings.fields import Words
from hub.settings.group import SettingsGroup
from machinery.apiserver.authn.allowlist import AllowedUrls
from machinery.apiserver.authn.https_json import https_flaw


class Attestations(SettingsGroup):
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
    attestation_allowed_issuers: Words = Field(
        (),
        description="Issuers whose keys the hub fetches when a bootstrap credential names them without keys: whole https:// "
        "addresses, or https://HOST[:PORT] for all of a host, with *. before it for its subdomains. Keys come from the same "
        "host or a listed one. Issuers of --attestation-issuers need no entry. Empty: none is fetched.",
    )
    attestation_audience: str = Field(
        "", description="For whom clusters' tokens must be. Empty: urn:uuid:<the hub's id>, so that no other hub can use them."
    )

    @field_validator("attestation_allowed_issuers")
    @classmethod
    def _are_addresses(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            if not AllowedUrls((entry,)).allow(entry.replace("//*.", "//any.", 1)) or https_flaw(entry) is not None:
                examples = "https://oidc.example.org/edge1 or https://*.example.org"
                raise ValueError(f'"{entry[:200]}" is not an https:// address, such as {examples}')
        return entries
