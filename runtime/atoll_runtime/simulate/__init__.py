"""Simulations in simulated time: `fleet`, `wan` and `planner` forecast what users rent, `training` compares methods."""
