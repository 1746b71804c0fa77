"""What is uncertain about a fit: its curvature, what halves of the data show, differences between embeddings."""
