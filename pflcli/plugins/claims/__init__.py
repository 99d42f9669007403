"""Claims about methods: their file, the comparisons that decide them, and the verdicts."""
