"""Layers of a model: weights packed once, schedules chosen per call."""
