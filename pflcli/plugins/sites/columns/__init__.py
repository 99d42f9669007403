"""Sites agree on what the columns of their tables mean, by summaries, before the first round."""
