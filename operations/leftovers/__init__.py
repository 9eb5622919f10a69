"""What owners that no longer exist left on a Harvester: find it, and delete it."""
