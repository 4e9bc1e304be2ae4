"""The wire models of `atoll.dev/v1alpha1`."""
