"""What the hub tells Prometheus: each metric declared beside the function that reads it from the part that counts."""

from hub.metrics.all_metrics import METRICS, MetricSources, add_metrics
from hub.metrics.listener import told_metrics

__all__ = ["METRICS", "MetricSources", "add_metrics", "told_metrics"]
