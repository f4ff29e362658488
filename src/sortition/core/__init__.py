"""The specification: numpy only, no state, readable against the paper."""
