"""Fast forms of networks on a CPU, with the same results up to rounding."""
