"""The disk contract: folders that explain themselves, written all at once or not at all."""
