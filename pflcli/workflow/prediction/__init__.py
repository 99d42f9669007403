"""Predict further samples and serve later clients with stored predictions; export one client's model."""
