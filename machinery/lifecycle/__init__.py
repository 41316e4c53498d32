"""The life of a server: start, readiness, stop request, end of accepting, drain and end, in a fixed order.

After Kubernetes' genericapiserver. Modules: `signals` (lifecycle moments), `process` (what ends a process), `hooks` (hooks of
start and stop), `health` (checks of /livez, /readyz and /healthz), `paths` (whether all paths are installed), `starting` and
`listening` (errors of a failed start), `debug` (stacks and counters), `systemd`, and `server` (the order itself).
"""
