"""Jobs: the artifacts of a comparison or a search as a graph that is planned, listed and run."""
