"""The package's version, for modules below the package's face."""

__version__ = "0.1.0"
