"""Simulated studies whose truth is known, to test the models on and to learn with."""

from ntfa.simulation.individual import IndividualTruth
from ntfa.simulation.simulator import Simulation, Simulator, simulate
from ntfa.simulation.truth import Truth

__all__ = ["IndividualTruth", "Simulation", "Simulator", "Truth", "simulate"]
