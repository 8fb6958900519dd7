from .api import dynamic_conv, lightweight_conv

__all__ = ["dynamic_conv", "lightweight_conv"]
