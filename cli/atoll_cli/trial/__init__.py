"""`atoll try`: a run on this machine. The operator's own plans control it, and its pods are processes."""
