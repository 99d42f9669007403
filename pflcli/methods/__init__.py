"""Personalization methods, one file each: ``setup``, ``train_round``, ``personalize``. State in, state out."""
