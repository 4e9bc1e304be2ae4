"""Training in simulated time: the protocol's own parts around real inner steps of JAX, all in one process."""
