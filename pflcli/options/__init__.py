"""The options of commands: one frozen dataclass per command, declared for the terminal and for Python alike."""
