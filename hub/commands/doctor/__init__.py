"""`hub doctor`: checks everything that a hub depends on, and its doors from outside, with advice.

It is read-only: no migration, no files, no locks, so that it can run beside a hub.
"""
