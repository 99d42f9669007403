"""The attacks of ``pfl audit``: membership inference and canary clients."""
