"""Parts of ``pfl compare``: variants of methods, their jobs, tunings and costs, and an existing comparison."""
