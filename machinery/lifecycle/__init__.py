"""Start and stop of a server in a fixed order: start, readiness, stop request, refusal of new work, drain, end.

The order is that of Kubernetes' genericapiserver. Modules: `server` (the order), `startup` (errors and retries of a start),
`hooks` (hooks of start and stop), `process` (signals to a process), `usage` (processor, memory, files) and `debug` (stacks and
counters).
"""
