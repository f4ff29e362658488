"""An app that writes down what happens to it."""
