"""What methods are written with: the run, the engine, parameters, nearest neighbours. No files, no terminal."""
