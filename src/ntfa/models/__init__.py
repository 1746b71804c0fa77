"""The generative models, each in one file that reads like its equations."""
