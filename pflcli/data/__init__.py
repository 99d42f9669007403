"""From a user's files to samples and partitions."""
