"""Results to tables and files; rich is imported only in ``table``."""
