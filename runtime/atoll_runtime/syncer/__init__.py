"""The syncer process: drives the pure protocol on real sockets, files and time."""
