"""The arena: every sampler against every environment, in replay and in closed loop."""
