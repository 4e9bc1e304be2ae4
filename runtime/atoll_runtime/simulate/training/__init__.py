"""Training in simulated time, in one process: the real programs of the protocol with real inner steps in JAX."""
