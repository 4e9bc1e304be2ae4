"""The proof of learning: decoupled training against data-parallel training, at equal tokens, data order and tuning."""
