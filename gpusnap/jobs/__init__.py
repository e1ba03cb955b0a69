"""Jobs that survive: programs that gpusnap starts, saves while they run, and brings back."""
