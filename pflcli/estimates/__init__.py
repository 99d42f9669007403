"""How long a run will take, and how much memory and disk, from a rehearsal with a few clients and a few steps."""
