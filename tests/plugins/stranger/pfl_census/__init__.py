"""A plug-in of another package: it counts classes, reads text, and computes in its own way."""
