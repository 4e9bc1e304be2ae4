"""Pure decisions: observed objects and a clock in, wanted objects, status and the next wake-up out."""
