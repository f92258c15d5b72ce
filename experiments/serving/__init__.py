"""Schedules of serving systems, simulated: times from tables, no model."""
