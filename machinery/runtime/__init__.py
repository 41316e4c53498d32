"""Clock, tasks, scheduler, back-off, work queue, event loop, health checks."""
