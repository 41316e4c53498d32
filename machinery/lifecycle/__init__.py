"""The life of a server: start, readiness, stop request, end of accepting, drain and end, in a fixed order.

After Kubernetes' genericapiserver. Modules: `server` (the order itself, its named moments and installed paths), `startup`
(errors and retries of a start), `hooks` (hooks of start and stop), `process` (signals to a process), `usage` (processor,
memory, files) and `debug` (stacks and counters).
"""
