"""The attacks of ``pfl audit``: membership inference, model inversion, and canary clients."""
