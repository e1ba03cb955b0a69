import platform

import pytest

from gpusnap.types import Device, EccCounts, Health
from gpusnap_amd import AmdBackend
from gpusnap_amd.devices import architecture
from tests.amd.invented import UNIQUE, VRAM, Machine

RAS = {
    "ras/umc_err_count": "ue: 1\nce: 20\nde: 7\n",
    "ras/gfx_err_count": "ue: 2\nce: 3\n",
    "ras/features": "feature mask: 0x3\n",
    "ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n",
}


def test_device_with_everything_told(machine: Machine, backend: AmdBackend) -> None:
    machine.add_cpu(0)
    machine.add_gpu(1, used=1 << 30)
    files = {
        "product_name": "Invented MI\n",
        "current_compute_partition": "SPX\n",
        "hwmon/hwmon3/temp1_input": "41500\n",
    }
    machine.add_board(**RAS, **files)
    machine.write("module/amdgpu/version", "6.12.12\n")
    (device,) = backend.gpusnap_devices()
    assert device.topology is not None
    assert device == Device(
        index=0,
        uuid="GPU-00c0ffee00c0ffee",
        vendor="AMD",
        model="Invented MI",
        pci="0000:c1:00.0",
        architecture="gfx942",
        memory_total=VRAM,
        memory_free=VRAM - (1 << 30),
        driver_version="6.12.12",
        firmware="mec 177, sdma 22",
        partitioned=False,
        health=Health(
            ecc_enabled=True,
            ecc=EccCounts(volatile_corrected=23, volatile_uncorrected=3),
            bad_pages=2,
            temperature_celsius=42,
        ),
        topology=device.topology,
    )


def test_what_is_not_told_is_unknown(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1, unique_id=0, gfx_target_version=0, fw_version=0, sdma_fw_version=0)
    (device,) = backend.gpusnap_devices()
    assert device == Device(
        index=0,
        uuid="GPU-0000:c1:00.0",
        vendor="AMD",
        model="AMD 0x74a1",
        pci="0000:c1:00.0",
        memory_total=VRAM,
        driver_version=f"Linux {platform.release()}",
        health=Health(ecc_enabled=True),
        topology=device.topology,
    )


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (100300, "gfx1030"),
        (110003, "gfx1103"),
        (120001, "gfx1201"),
        (0, None),
    ],
)
def test_architecture(version: int, name: str | None) -> None:
    assert architecture(version) == name


def test_order_is_that_of_the_nodes(machine: Machine, backend: AmdBackend) -> None:
    for node in (10, 9, 2):
        machine.add_gpu(node, unique_id=node, location_id=node << 8, drm_render_minor=120 + node)
    devices = backend.gpusnap_devices()
    assert [device.index for device in devices] == [0, 1, 2]
    assert [device.pci for device in devices] == [f"0000:{bus:02x}:00.0" for bus in (2, 9, 10)]


@pytest.mark.parametrize("shift", [0, 28], ids=["partition-as-function", "partition-on-top"])
@pytest.mark.parametrize("shown", [True, False], ids=["board-shown", "board-hidden"])
def test_partitions_are_devices(
    machine: Machine, backend: AmdBackend, shift: int, *, shown: bool
) -> None:
    for partition in range(3):
        location = 0xC100 | partition << shift
        machine.add_gpu(1 + partition, used=partition << 30, location_id=location)
    if shown:
        machine.add_board(
            current_compute_partition="CPX\n", mem_info_vram_used="99\n", mem_info_vram_total="100"
        )
    devices = backend.gpusnap_devices()
    assert [device.uuid for device in devices] == [f"GPU-{UNIQUE:016x}-{n}" for n in range(3)]
    assert {device.pci for device in devices} == {"0000:c1:00.0"}
    assert all(device.partitioned for device in devices)
    assert [device.memory_free for device in devices] == [VRAM - (n << 30) for n in range(3)]


def test_one_visible_partition_keeps_its_name(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(3, location_id=0xC102)
    machine.add_board(current_compute_partition="CPX\n", mem_info_vram_used="99\n")
    (device,) = backend.gpusnap_devices()
    assert (device.uuid, device.partitioned) == (f"GPU-{UNIQUE:016x}-2", True)
    assert device.memory_free is None


def test_partition_number_alone_tells_a_partition(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(3, location_id=0xC100 | 2 << 28)
    (device,) = backend.gpusnap_devices()
    assert (device.uuid, device.partitioned) == (f"GPU-{UNIQUE:016x}-2", True)
    assert device.pci == "0000:c1:00.0"


def test_real_functions_are_kept(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1, location_id=0xC102)
    machine.add_board("0000:c1:00.0")
    machine.add_board("0000:c1:00.2", product_name="second")
    (device,) = backend.gpusnap_devices()
    assert (device.pci, device.model, device.partitioned) == ("0000:c1:00.2", "second", None)


def test_board_is_found_through_its_render_node(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.write("class/drm/renderD128/device/vendor", "0x1002\n")
    machine.write("class/drm/renderD128/device/mem_info_vram_total", f"{VRAM}\n")
    machine.write("class/drm/renderD128/device/mem_info_vram_used", f"{VRAM // 4}\n")
    (device,) = backend.gpusnap_devices()
    assert device.memory_free == VRAM - VRAM // 4


@pytest.mark.parametrize("used", ["", "-5\n", "many\n", f"{VRAM + 1}\n", "9" * 5000])
def test_use_that_cannot_be_is_unknown(machine: Machine, backend: AmdBackend, used: str) -> None:
    machine.add_gpu(1)
    machine.add_board(mem_info_vram_total=str(VRAM), mem_info_vram_used=used)
    assert backend.gpusnap_devices()[0].memory_free is None


@pytest.mark.parametrize("total", ["", "0\n", "-5\n", f"{VRAM // 2}\n"])
def test_use_of_another_total_says_nothing(
    machine: Machine, backend: AmdBackend, total: str
) -> None:
    machine.add_gpu(1)
    machine.add_board(mem_info_vram_total=total, mem_info_vram_used="4096\n")
    (device,) = backend.gpusnap_devices()
    assert (device.memory_total, device.memory_free) == (VRAM, None)


def test_firmware_as_far_as_it_is_told(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.add_board(
        vbios_version="113-INVENTED\n",
        **{
            "fw_version/mec_fw_version": "0x000000b1\n",
            "fw_version/smc_fw_version": "0x00554400\n",
            "fw_version/uvd_fw_version": "0x00000000\n",
            "fw_version/vcn_fw_version": "",
        },
    )
    (device,) = backend.gpusnap_devices()
    assert device.firmware == "mec 177, sdma 22, vbios 113-INVENTED, smc 0x00554400"


@pytest.mark.parametrize(
    ("pages", "count"),
    [("", 0), ("0x00000001 : 0x00001000 : F\n", 1), ("nonsense\n", None), (b"\xff\x00", None)],
)
def test_bad_pages(
    machine: Machine, backend: AmdBackend, pages: str | bytes, count: int | None
) -> None:
    machine.add_gpu(1)
    machine.add_board(**{"ras/gpu_vram_bad_pages": pages})
    assert backend.gpusnap_devices()[0].health.bad_pages == count


def test_junction_temperature_where_there_is_no_edge(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1, capability=0)
    machine.add_board(**{"hwmon/hwmon0/name": "amdgpu\n", "hwmon/hwmon0/temp2_input": "-3000\n"})
    health = backend.gpusnap_devices()[0].health
    assert (health.temperature_celsius, health.ecc_enabled) == (-3, False)
