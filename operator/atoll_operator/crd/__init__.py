"""Generates the custom resource definitions from the models in `api/`."""
