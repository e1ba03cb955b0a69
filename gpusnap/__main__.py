"""``python -m gpusnap`` is the command ``gpusnap``."""

from gpusnap.cli import main

if __name__ == "__main__":
    main()
