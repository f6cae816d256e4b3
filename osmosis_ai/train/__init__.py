"""Training: advantages, training samples, losses, the funnel, the audit."""
