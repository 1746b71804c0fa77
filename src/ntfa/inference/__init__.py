"""Inference: how a topographic model is fitted to frames. Pure functions of tensors; no imaging, no tables."""
