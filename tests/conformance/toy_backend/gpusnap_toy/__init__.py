"""The toy accelerator's backend; gpusnap finds it by its entry point."""

from .backend import backend

__all__ = ["backend"]
