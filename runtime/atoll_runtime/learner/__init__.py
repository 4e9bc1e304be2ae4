"""One island: a mesh of devices that trains by itself and exchanges fragments with the syncer."""
