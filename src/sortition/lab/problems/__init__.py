"""Benchmark federations: data, a model and its gradients, nothing about sampling."""
