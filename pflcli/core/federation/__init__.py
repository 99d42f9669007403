"""What a method sees: the run, what it sends, its peers and clusters. No files, no terminal."""
