"""What is not the core: one folder each, which ``core/plugins.py`` finds by its ``plugin.py``."""
