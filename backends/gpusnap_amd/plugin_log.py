"""What the lines of CRIU's amdgpu plugin in CRIU's log mean.

Words of ``plugins/amdgpu`` in CRIU's sources from 4.1 on. Twice CRIU itself says something else:
success, or nothing because it crashes.
"""

from gpusnap.types import LogMeaning

_CONTAINER = "Run gpusnap where the GPUs of the process, and no others, are shown"

_BOTH = (
    LogMeaning(
        words="CR not supported on current kernel",
        text="KFD of this kernel is too old for CRIU's amdgpu plugin",
        cure="Use Linux 6.0 or newer, or the driver of a newer ROCm",
    ),
    LogMeaning(
        words=r"Failed to open /dev/dri/renderD|Can't (?:open|pass NULL) drm render",
        text="CRIU's amdgpu plugin could not open a GPU's render node",
        cure=f"{_CONTAINER}: their render nodes must be there too",
    ),
    LogMeaning(
        words="Failed to alloc aligned memory",
        text="The host has too little memory for CRIU's amdgpu plugin to copy a buffer through",
        cure="Set KFD_MAX_BUFFER_SIZE, to 256M for example, or free memory",
    ),
    LogMeaning(
        words="Failed to (?:drain|fill) the BO using sDMA",
        text="The GPU's copy engine failed on a buffer",
        cure="See the kernel's log (dmesg) for what the driver says",
    ),
)

DUMP_MEANINGS = (
    LogMeaning(
        words="Failed to call process info ioctl",
        text="KFD refused to pause the process, on which CRIU's amdgpu plugin crashes",
        cure="Run gpusnap as root outside of containers; see the kernel's log (dmesg)",
    ),
    LogMeaning(
        words=r"Failed to call dumper \(process\) ioctl.*Invalid argument",
        text="KFD refused to save the process: it may use other GPUs than CRIU is shown",
        cure=_CONTAINER,
    ),
    LogMeaning(
        words=r"Failed to call dumper \(process\) ioctl",
        text="KFD refused to save the process",
        cure="See the kernel's log (dmesg) for what the driver says",
    ),
    *_BOTH,
    LogMeaning(
        words=r"amdgpu_plugin: devices:\d+ bos:\d+",
        unless="Process unpaused Ok",
        text="CRIU left the GPU queues of the process paused: its threads run on, its work on the "
        "GPU does not, and nothing but its end puts that right",
        aside=True,
    ),
)

RESTORE_MEANINGS = (
    LogMeaning(
        words="restore late ioctl failed",
        text="KFD did not start the GPU queues of a restored process, though CRIU says success",
        cure="See the kernel's log (dmesg); restore again",
        fatal=True,
    ),
    LogMeaning(
        words="Number of (?:devices|xgmi groups) mismatch",
        text="This machine has another number of GPUs, or of XGMI hives, than the snapshot",
        cure="Restore on the like of the saved GPUs",
    ),
    LogMeaning(
        words="Failed to match (?:remaining nodes|all GPU groups)",
        text="CRIU's amdgpu plugin found no GPUs that may replace the saved ones",
        cure="Run gpusnap check --restore with the snapshot: it names what stands in the way, "
        "unless the plugin overlooked a way",
    ),
    LogMeaning(
        words=r"size mismatch \(current:",
        text="An image of GPU memory has another size than the buffers in it",
        cure="Restore another snapshot",
    ),
    LogMeaning(
        words="Restore ioctl failed",
        text="KFD refused the saved state",
        cure="See the kernel's log (dmesg) for what the driver says",
    ),
    *_BOTH,
)
