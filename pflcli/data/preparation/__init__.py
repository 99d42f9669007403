"""From a user's files to a dataset, and from a dataset to clients with splits and scaled features."""
