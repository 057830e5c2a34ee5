"""LeVo toolkit: a manifest of lyrics in, songs with provenance and a bill out."""

__version__ = "0.1.0"
