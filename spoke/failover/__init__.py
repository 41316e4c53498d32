"""The other hubs of the list: candidates, standby registration, reconnects."""
