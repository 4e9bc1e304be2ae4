"""`kubectl atoll`: shows runs and units, and changes them with patches of their objects."""
