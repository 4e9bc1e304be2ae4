"""Errors of the host, with messages that let a user fix them."""

from __future__ import annotations


class HostError(Exception):
    """This machine cannot do what was asked; the message is one clear sentence (exit status 2)."""


class StateError(HostError):
    """What is left of a cluster on this machine cannot be read or removed now (exit status 1)."""


class ClusterError(Exception):
    """The cluster did not come up or did not answer in time; the message names the part and its log."""
