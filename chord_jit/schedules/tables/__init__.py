"""Measured schedules, one JSON file per kernel: sorted rows, each with its time and where it was measured."""
