"""The arithmetic of a merge: the outer gradients of units, their average, and the outer step (numpy and numba)."""
