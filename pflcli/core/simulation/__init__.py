"""A federation in memory: create the run of a method, play its rounds, and predict. No file, no terminal."""
