"""Samplers and ways to combine updates that others published, to be compared with; ``field`` names them."""
