"""The change log: revisions, followers, retention and the past."""
