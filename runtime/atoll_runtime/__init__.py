"""The programs in the pods of an Atoll run: learners, the syncer, and their protocol."""
