"""What is answered in simulated time: `fleet` and `wan` forecast what users rent, `training` compares methods."""
