"""The change log: revisions, followers, retention and history."""
