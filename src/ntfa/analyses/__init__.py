"""What can be concluded from a fitted model."""
