"""What ``predict`` and ``new-client`` consist of: stored predictions opened again, and answers for further samples."""
