"""The parts of ``pfl tune``: the search space, samplers that propose points of it, and trials."""
