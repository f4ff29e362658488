"""The same mathematics at a cost that does not grow with the number of clients."""
