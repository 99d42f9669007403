"""The parts of ``pfl compare``: variants of methods, their jobs and tunings, an existing comparison, and costs."""
