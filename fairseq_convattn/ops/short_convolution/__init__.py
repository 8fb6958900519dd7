from .api import low_rank_short_conv, short_conv

__all__ = ["low_rank_short_conv", "short_conv"]
