"""What is answered in simulated time: `schedules` tests the protocol, `fleet` and `wan` forecast what users rent."""
