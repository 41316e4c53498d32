"""What settings of every concern have in common."""

import re

from pydantic_settings import BaseSettings, SettingsConfigDict

ENVIRONMENT_PREFIX = "HUB_"
SECRET = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""NAMESPACE/NAME."""


class SettingsGroup(BaseSettings):
    """Settings of one concern. The descriptions are the program's help."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, arbitrary_types_allowed=True
    )
