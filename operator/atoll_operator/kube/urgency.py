"""How much an object's new state matters to who has to look."""

from __future__ import annotations

from enum import IntEnum


class News(IntEnum):
    """What may have changed; of two the greater one counts."""

    NONE = 0
    """It was known, or no plan reads what changed."""
    CALM = 1
    """It can be looked at soon, together with others, such as a pod that is on its way up."""
    URGENT = 2
