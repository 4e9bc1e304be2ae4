"""Generated specs, judged by the CEL library: valid ones are accepted, damaged ones refused by the name of a field.

A control test compares a tenth of the verdicts with those of a real API server.
"""

from __future__ import annotations

import re

import pytest
from drawn import PARTS, drawn

from atoll_cli.simulate.admission import faults

pytestmark = pytest.mark.timeout(300)
FIELD = re.compile(r"^(spec(\.\S+?|\[\d+\])*: |metadata\.name )")


@pytest.mark.parametrize("part", PARTS)
def test_a_spec_is_accepted_or_refused_by_the_name_of_a_field(part: str) -> None:
    found = [faults(body) for body in drawn(part)]
    assert [line for lines in found for line in lines if not FIELD.match(line)] == []
    refused = sum(map(bool, found)) / len(found)
    assert refused == 0 if not part.startswith("broken") else 0.5 < refused < 1
