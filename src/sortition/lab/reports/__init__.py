"""Results as tables, files, charts and pages."""
