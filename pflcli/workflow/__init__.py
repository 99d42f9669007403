"""What commands are made of: a run and its checkpoints, jobs, comparisons, tuning, prediction, admission."""
