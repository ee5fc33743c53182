"""Claude's memory tool on Holographic Memory stores: the library under the gateway."""

__version__ = "0.1.0"
