"""Nearest neighbours: indexes, stores of clients, what a store keeps, and grids of kNN-Per's options."""
