from .api import dynamic_conv, lightweight_conv
from .past import Past, Ring

__all__ = ["Past", "Ring", "dynamic_conv", "lightweight_conv"]
