"""The load of GPUs is read from the driver's library; here from one like it."""

import time

from frugax import watch


class Driver:
    """Two GPUs: one that tells all, one that tells its power only."""

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number, device):
        device._obj.value = number + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, device, rates):
        if device.value == 2:
            return 3  # not supported
        rates._obj.gpu = 87
        return 0

    def nvmlDeviceGetPowerUsage(self, device, power):
        power._obj.value = 1000 * 250 * device.value
        return 0


def system_of(tmp_path):
    with watch.run(tmp_path / "run"):
        time.sleep(0.3)
    return watch.read(tmp_path / "run" / "journal").streams["system"]


def test_each_gpu_has_its_load_and_power(tmp_path, monkeypatch):
    monkeypatch.setattr("frugax.watch._run._SYSTEM_INTERVAL_S", 0.02)
    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    system = system_of(tmp_path)
    told = {name: system[name][-1] for name in system.names if name.startswith("gpu")}
    assert told == {
        "gpu 0 load, percent": 87.0,
        "gpu 0 power, W": 250.0,
        "gpu 1 power, W": 500.0,
    }
