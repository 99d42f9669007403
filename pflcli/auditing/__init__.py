"""What ``pfl audit`` consists of: queries, reference models, attacks, and pictures of classes."""
