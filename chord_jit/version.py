"""The version of the package: the build reads it from here without importing anything else."""

VERSION = "0.1.0"
