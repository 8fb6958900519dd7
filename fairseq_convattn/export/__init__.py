"""Trained models as programs of torch.export and ONNX."""

from .programs import Encoder, Step, Whole, export

__all__ = ["Encoder", "Step", "Whole", "export"]
