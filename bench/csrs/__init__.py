"""Mutated certificate signing requests against the hub's own decisions: parse, check, submit, approve, issue.

`der` writes and takes apart DER, right and wrong; `ring` holds keys of all kinds; `drafts`, `contents` and `mutations` make a
request and break it; `world` is a hub with clusters, credentials and a CA, with nothing replaced but the database; `verdicts`
says, without the hub's own code, whether what was signed was allowed. `python -m bench.csrs` runs and counts.
"""
