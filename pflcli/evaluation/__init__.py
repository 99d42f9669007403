"""Score stored predictions and runs: metrics, tables, conclusions and charts."""
