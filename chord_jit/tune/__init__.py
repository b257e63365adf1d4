"""The tuner: measures the legal schedules of a family on a GPU, decides, and writes table rows. ``docs/schedules.md``."""
