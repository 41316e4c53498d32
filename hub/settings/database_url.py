"""Which database a hub with given settings has."""

from hub.settings import HubSettings


def database_url(settings: HubSettings) -> str:
    """The database of a hub with these settings."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return f"sqlite:///{settings.data_dir / 'hub.db'}"
