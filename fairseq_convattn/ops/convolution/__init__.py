from .api import dynamic_conv, lightweight_conv
from .past import Past

__all__ = ["Past", "dynamic_conv", "lightweight_conv"]
