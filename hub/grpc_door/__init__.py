"""The door for agents: gRPC servicers. They translate and hold streams; what may happen is decided in access and services.

The C core reads its environment when `grpc` is first imported, which every module of this package does after this one. Its own
lines about failed handshakes would stand between ours. Its older way of listening costs half the processor time per heartbeat
(bench/heartbeats.py), because the thread that waits for events also reads the sockets.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
