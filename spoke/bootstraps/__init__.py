"""The agent's list of hubs: bootstrap kubeconfigs in files and secrets, in the configured order, all watched for changes.

A hub is on the list while a source names it. An unreadable source is logged, and its last hub stays on the list, because a file
may be read while it is being written. A source that is deleted, or names another hub, removes its hub from the list.
"""
