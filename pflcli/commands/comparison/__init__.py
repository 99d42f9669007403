"""Parts of ``pfl compare``: plan, steps, progress, and the comparison that exists already."""
