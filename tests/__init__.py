"""Tests of gpusnap; folders mirror the package."""
