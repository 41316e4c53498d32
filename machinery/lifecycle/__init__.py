"""How a server lives: it starts, is ready, is asked to stop, stops accepting, drains and ends, in one proven order.

After Kubernetes' genericapiserver. The parts: `signals` (what has happened so far), `process` (what ends a process), `hooks`
(what others do at both ends), `health` (what /livez, /readyz and /healthz ask), `paths` (whether all are there), `starting` and
`listening` (a start that cannot go on says why), `debug` (what a process does right now), `systemd`, and `server` (the order
itself).
"""
