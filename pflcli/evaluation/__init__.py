"""Score stored predictions and runs: metrics, tables, conclusions, charts and the page of ``pfl report``."""
