"""`ModelPart`: the layers whose operators a step-time model adds up (one stage's, or all)."""

from __future__ import annotations

from sim.model_part import ModelPart, split_layers, whole

__all__ = ["ModelPart", "split_layers", "whole"]
