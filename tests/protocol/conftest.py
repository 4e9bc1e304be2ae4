"""Fixtures of these tests, which stand in `tests/support`. Programs are kept between runs."""

from compile_cache import keep_programs
from protocol_parties import (
    authority_fixture,
    certificate_fixture,
    eventually_fixture,
    free_ports_fixture,
    learner_process_fixture,
    make_run_fixture,
    numpy_unit_fixture,
    syncer_fixture,
)

keep_programs()

__all__ = [
    "authority_fixture",
    "certificate_fixture",
    "eventually_fixture",
    "free_ports_fixture",
    "learner_process_fixture",
    "make_run_fixture",
    "numpy_unit_fixture",
    "syncer_fixture",
]
