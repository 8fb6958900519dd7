"""Token mixers for fairseq, as a ``--user-dir`` plugin: any of ``mixers.MIXERS`` per layer.

Lightweight and dynamic convolution (Wu et al. 2019), composite attention (Chang et al. 2021),
translation-invariant attention (Wennberg and Henter 2021) and self-attention.

Importing this package registers its models with fairseq. Without fairseq the operations
in :mod:`fairseq_convattn.ops` still work.
"""

import importlib.util
import logging
import sys
import warnings

__version__ = "0.1.0"

_fairseq = importlib.util.find_spec("fairseq")
if _fairseq is None or _fairseq.origin is None:  # a folder of that name is not the package
    warnings.warn(
        "fairseq is not installed, so fairseq_convattn registers no models (its operations "
        "work). Install it beside your torch: pip install numpy cython setuptools wheel "
        "ninja packaging && pip install --no-build-isolation fairseq-fixed==0.12.3.1",
        stacklevel=2,
    )
else:
    # no line about tensorboardX where fairseq is imported by this package
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    _root = logging.getLogger()
    _is_configured, _level = _root.hasHandlers(), _root.level

    from . import architectures as architectures
    from . import optimizers as optimizers
    from . import programs
    from . import summarization as summarization
    from .checkpoints import guard
    from .compatibility import apply
    from .scoring import fairseq_scorer as fairseq_scorer

    apply()
    guard.install()
    programs.install(sys.argv)
    if not _is_configured:  # a task of fairseq's sets the root logger to DEBUG
        _root.handlers.clear()
        _root.setLevel(_level)
