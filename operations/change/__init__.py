"""Changes of running clusters: plan, scale, upgrade, replace and delete."""
