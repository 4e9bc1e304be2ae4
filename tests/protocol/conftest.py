"""Fixtures of these tests; they stand in `tests/support`."""

from protocol_parties import (
    authority_fixture,
    eventually_fixture,
    free_ports_fixture,
    learner_process_fixture,
    make_run_fixture,
    numpy_unit_fixture,
    syncer_fixture,
)

__all__ = [
    "authority_fixture",
    "eventually_fixture",
    "free_ports_fixture",
    "learner_process_fixture",
    "make_run_fixture",
    "numpy_unit_fixture",
    "syncer_fixture",
]
