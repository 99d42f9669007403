"""A comparison on the data that are included in the package."""
