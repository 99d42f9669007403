"""Tools of kNN-Per: a search over its options, and stores that change."""
