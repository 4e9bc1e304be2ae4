"""The pods of a run: names, topology, environment, templates."""
