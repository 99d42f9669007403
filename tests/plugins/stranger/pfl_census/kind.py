"""A census: ``counts.json`` has the number of classes of each client."""

SCHEMA = 1
MADE_BY = "pfl census PARTITION -o DIR"


def check(artifact):
    """Read the counts."""
    return artifact.json("counts.json", dict[str, int])


def describe(manifest):
    """Return how many clients there are."""
    return [f"{manifest.summary['clients']} clients"]
