"""The programs `hub backup` and `hub restore`: a hub in one file, while it goes on, and a hub out of it.

`hub.store.backup` reads and writes the rows and the file. This package handles the keys, the order of the steps and the output.
"""
