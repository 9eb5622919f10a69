"""Upgrades of add-ons in waves."""
