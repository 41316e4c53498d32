"""The commands `hub backup` and `hub restore`.

`hub.store.backup` reads and writes rows and file. This package handles the keys, the order of the steps and the output.
"""
