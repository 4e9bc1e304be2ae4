"""Fixtures of these tests, from `tests/support`. JAX compiles quickly here, with little optimisation."""

import os

# Read when JAX is first imported. A step of a toy model compiles in 0.4 s instead of 1.5 s (JAX 0.10, 2 cores).
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

from played_kubectl import atoll_on_fixture, call_fixture, kubectl_fixture
from protocol_parties import authority_fixture, eventually_fixture, free_ports_fixture, make_run_fixture

__all__ = [
    "atoll_on_fixture",
    "authority_fixture",
    "call_fixture",
    "eventually_fixture",
    "free_ports_fixture",
    "kubectl_fixture",
    "make_run_fixture",
]
