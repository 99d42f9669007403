"""The files that ``pfl new`` writes, one for each kind: complete, commented, and ready to be changed."""
