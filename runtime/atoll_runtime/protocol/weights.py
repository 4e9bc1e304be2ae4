"""How much a contribution counts (§3.2): tokens times tokens per step."""

from __future__ import annotations


def weight(steps: int, tokens: int) -> float:
    """c_tokens² / c_steps since the unit last received the fragment; 0 without a step."""
    return tokens * tokens / steps if steps > 0 and tokens > 0 else 0.0
