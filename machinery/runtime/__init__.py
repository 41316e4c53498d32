"""Clock, tasks, scheduler, back-off, work queue, controller, informer, event loop, congestion, health checks, TLS."""
