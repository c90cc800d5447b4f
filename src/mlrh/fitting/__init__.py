"""How coefficients are found: features to scores, the objective, and its minimisers."""
