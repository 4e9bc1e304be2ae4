"""Trains one model in four regions synchronously and with Atoll, over links like those between data centres."""
