"""A real Kubernetes on one Linux machine, for the demo and the tests."""
