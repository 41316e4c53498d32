"""Adapter: a hub over gRPC. Not for deciding anything: when to dial, what to do about a loss is the agent's.

The C core reads its environment when `grpc` is first imported, which every module of this package does after this one: its own
lines about failed handshakes would stand between ours, and it must not prepare for forks that never come.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
