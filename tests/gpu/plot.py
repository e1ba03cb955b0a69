"""Draws what comparison.py measured: where the seconds of a checkpoint and a restore go.

    python tests/gpu/plot.py FILE.json FILE.svg

Needs matplotlib. Bars are medians over the rounds of the counter, step by step; every point is one
round's whole time.
"""

import json
import statistics
import sys
from pathlib import Path

from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]

Times = dict[str, int]

WAYS = {
    "gpusnap_thp": "gpusnap --thp",
    "gpusnap": "gpusnap",
    "criu": "CRIU alone",
    "criu_plugin": "CRIU with its\ncuda plugin",
}
COMMANDS = ("checkpoint", "restore")
STEPS = {
    "driver": ("lock", "checkpoint", "restore", "unlock", "driver"),
    "preflight and compare": ("preflight", "compare"),
    "CRIU, all": ("saved",),
    "CRIU's own dump and restore": ("dump", "criu-restore"),
    "verify before the restore": ("verify",),
    "copy and write, or fill": ("copy", "write", "fill"),
    "digest and publish": ("digest", "publish"),
    "the rest": (),
    "CRIU and driver": (),
}
COLOURS = {
    "driver": "#b8b8b8",
    "preflight and compare": "#e3d9b0",
    "CRIU, all": "#d1605e",
    "CRIU's own dump and restore": "#e8a09a",
    "verify before the restore": "#85b6b2",
    "copy and write, or fill": "#3b7fb6",
    "digest and publish": "#a7c8e0",
    "the rest": "#efefef",
    "CRIU and driver": "#dfa48f",
}


def steps(way: str, times: Times) -> dict[str, float]:
    """Seconds by step; the rest is what no step tells of, CRIU's plugin tells of none."""
    if way == "criu_plugin":
        return {"CRIU and driver": times["total_us"] / 1e6}
    own = {"share_us", "saved_us"}
    known = {name: us for name, us in times.items() if name not in own}
    if way == "criu":
        known["saved_us"] = times.get("saved_us", times["share_us"])
    found = {
        step: sum(known.get(f"{name}_us") or 0 for name in names) / 1e6
        for step, names in STEPS.items()
    }
    found["the rest"] = times["total_us"] / 1e6 - sum(found.values())
    return found


def draw(measured: dict[str, object], output: Path) -> None:
    plt.rcParams["svg.fonttype"] = "none"  # letters as letters, not as curves
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
    rounds = measured["counter"]
    assert isinstance(rounds, list)
    shown = {way: name for way, name in WAYS.items() if any(way in each for each in rounds)}
    for axis, command in zip(axes, COMMANDS, strict=True):
        for row, way in enumerate(shown):
            times = [each[way][command] for each in rounds if way in each]
            split = [steps(way, each) for each in times]
            left = 0.0
            for step in STEPS:
                width = statistics.median(each.get(step, 0.0) for each in split)
                if width > 0:
                    axis.barh(row, width, left=left, height=0.55, color=COLOURS[step])
                left += width
            seconds = [each["total_us"] / 1e6 for each in times]
            axis.plot(seconds, [row] * len(seconds), "k.", markersize=5)
        axis.set_title(f"{command}, {measured['gib']:g} GiB")
        axis.set_xlabel("seconds")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(shown)), shown.values())
    axes[0].invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[step]) for step in STEPS]
    figure.legend(handles, STEPS, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
