"""`kubectl atoll`: looks at runs and units, and changes them by patches of their objects."""
