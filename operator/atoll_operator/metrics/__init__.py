"""What Prometheus and probes read."""
