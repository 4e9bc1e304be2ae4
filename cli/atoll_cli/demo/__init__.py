"""`atoll demo`: a run on a real cluster, one unit killed half-way, and a verdict."""
