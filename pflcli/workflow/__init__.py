"""What commands share: the steps of a workflow."""
