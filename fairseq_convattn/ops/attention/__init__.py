from .api import composite_attention
from .terms import (
    BEYOND,
    POSITION_TERMS,
    TABLE_TERMS,
    TERMS,
    Terms,
    alibi_slopes,
    relative_bias,
)

__all__ = [
    "BEYOND",
    "POSITION_TERMS",
    "TABLE_TERMS",
    "TERMS",
    "Terms",
    "alibi_slopes",
    "composite_attention",
    "relative_bias",
]
