"""Every message is in the table that says which event of the state machine it becomes."""

from __future__ import annotations

import re
from pathlib import Path

from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.messages import Welcome

PAGE = Path(__file__).resolve().parents[2] / "docs/protocol.md"


def test_every_message_is_in_the_table_of_events() -> None:
    table = PAGE.read_text().split("| message | event |\n")[1].split("\n\n")[0]
    named = {word for row in table.splitlines() for word in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    kinds = Message.__subclasses__()
    assert Welcome in kinds
    assert sorted({kind.__name__ for kind in kinds} - named) == []
