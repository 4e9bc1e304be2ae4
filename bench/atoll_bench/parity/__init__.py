"""The proof of learning: compares decoupled and data-parallel training at equal tokens, data order and tuning."""
