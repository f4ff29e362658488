"""One file a sampler."""
