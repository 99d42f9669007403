"""Windows of long records."""
