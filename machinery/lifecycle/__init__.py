"""How a server lives: it starts, is ready, is asked to stop, stops accepting, drains and ends, in one proven order.

After Kubernetes' genericapiserver. The parts: `signals` (what has happened so far), `process` (SIGTERM and SIGINT), `hooks`
(what others do at both ends), `health` (what /livez, /readyz and /healthz ask), `server` (the order itself).
"""
