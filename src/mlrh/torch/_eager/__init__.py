"""The loss, distributions and decisions in torch operations, for tensors on any device."""
