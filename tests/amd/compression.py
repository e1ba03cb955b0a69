"""Measures what packing saves of page files as CRIU's amdgpu plugin writes them.

    python tests/amd/compression.py --python PYTHON [--folder FOLDER]

Needs PyTorch in PYTHON. No GPU takes part: the buffers are the parameters, gradients and Adam
state of a small language model trained on the CPU, one buffer each, in the plugin's format. Two
more files are of 4 steps later, and the first with one more buffer in front. Prints JSON.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from gpusnap.datapath import Compression, ImageFile, Parent, Saved, Saver, Saving
from gpusnap.types import SavedMemory

PROGRAM = """
import sys, torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from language_model import BATCH, CONTEXT, VOCABULARY, LanguageModel
folder, kind = sys.argv[2], {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[3]]
torch.manual_seed(0)
model = LanguageModel(384, 4).to(kind)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(9):
    tokens = torch.rand(BATCH, CONTEXT + 1).pow(6).mul(VOCABULARY).long()
    loss = nn.functional.cross_entropy(
        model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (4, 8):
        tensors = []
        for each in model.parameters():
            state = optimizer.state[each]
            tensors += [each.data, each.grad, state["exp_avg"], state["exp_avg_sq"]]
        with open(f"{folder}/{step}", "wb") as file:
            sizes = []
            for tensor in tensors:
                data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
                data += bytes(-len(data) % 4096)
                sizes.append(len(data))
                file.write(data)
        print(*sizes)
"""

HEADER, MIB = 8, 1 << 20


def page_file(path: Path, content: bytes, sizes: list[int]) -> ImageFile:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(content).to_bytes(HEADER, "little") + content)
    return ImageFile(path=path, parts=(HEADER, *sizes))


def save(
    file: ImageFile, folder: Path, saving: Saving, parent: Path | None = None
) -> tuple[SavedMemory, float]:
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.perf_counter()
    saver = Saver(folder, saving, Parent(Saved(parent)) if parent else None)
    saver.copy((), lambda *_: None, [file])
    memory = saver.finish(lambda *_: None)
    return memory, time.perf_counter() - begin


def measure(folder: Path, sizes: list[int]) -> dict[str, object]:
    first, second = ((folder / step).read_bytes() for step in ("4", "8"))
    one = page_file(folder / "one/pages.img", first, sizes)
    extra = Path("/dev/urandom").open("rb").read(2 * MIB)  # noqa: SIM115 - a moment
    moved = page_file(folder / "three/pages.img", extra + first, [len(extra), *sizes])
    two = page_file(folder / "two/pages.img", second, sizes)
    found: dict[str, object] = {"bytes": len(first), "buffers": len(sizes)}
    for each in Compression:
        memory, seconds = save(one, folder / "regions", Saving(compression=each))
        found[each.value] = {
            "saved": 1 - memory.stored / memory.raw,
            "zero": memory.zero,
            "seconds": seconds,
            "codecs": {use.codec: [use.raw, use.stored] for use in memory.codecs},
        }
    saving = Saving(compression=Compression.NONE, incremental=True)
    save(one, folder / "parent", saving)
    for name, file in (("4 steps later", two), ("a buffer in front", moved)):
        memory, _ = save(file, folder / "regions", saving, folder / "parent")
        found[name] = {"reused": memory.reused, "of": memory.raw}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    programs = Path(__file__).parents[1] / "gpu/programs"
    for kind in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            command = [arguments.python, "-c", PROGRAM, str(programs), name, kind]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            sizes = list(map(int, run.stdout.splitlines()[0].split()))
            print(kind, json.dumps(measure(Path(name), sizes), indent=2), flush=True)


if __name__ == "__main__":
    main()
