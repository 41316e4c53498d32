"""`hub doctor`: checks everything that a hub depends on, and connects to its doors as a client. Prints advice.

The command only reads: it migrates nothing and takes no lock, so that it can run while the hub runs.
"""
