"""`atoll try`: a run on this machine, its pods as processes, by the operator's own plans."""
