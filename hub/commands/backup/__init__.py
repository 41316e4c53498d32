"""The programs `hub backup` and `hub restore`: a hub in one file, while it goes on, and a hub out of it.

The rows are `hub.store.backup.backup`'s and `hub.store.backup.restore`'s, the form of the file `hub.store.backup.archive`'s; here are the keys, the
order of the steps, and what is said of them.
"""
