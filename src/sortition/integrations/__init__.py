"""Sortition inside other people's systems, one package each; each needs its extra and is imported by name."""
