"""`atoll`, the command line."""
