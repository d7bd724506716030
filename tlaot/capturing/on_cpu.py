"""Where there is no GPU, a program that is only recorded has its tensors on the CPU, and sees them on one."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

__all__ = ["put_on_cpu"]

# What programs call beside tensors, and what does nothing where there is no device to wait for.
_NOTHING = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats")


def put_on_cpu(torch: ModuleType) -> None:
    """Have this thread make tensors on the CPU that it asks for on a GPU, from now on; nothing where a GPU is here.

    Their ``device`` is the GPU all the same, and ``is_cuda`` is true: what is made beside them is asked for there, too. torch's
    operations run on the CPU as they do; only kernels of TileLang do not run.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is not None and count() > 0:
        return
    for name in _NOTHING:
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device = lambda *args, **kwargs: contextlib.nullcontext()
    from torch.overrides import TorchFunctionMode

    tensor, device = torch.Tensor, torch.device
    cpu, gpu = device("cpu"), device("cuda", 0)
    device_of, is_cuda = tensor.device.__get__, tensor.is_cuda.__get__

    def moved(value: Any) -> Any:
        return cpu if isinstance(value, device) and value.type == "cuda" else value

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func == device_of:
                found = func(*args)
                return gpu if found.type == "cpu" else found
            if func == is_cuda:
                return True
            if func is tensor.cuda:
                return args[0]
            given = {name: moved(value) for name, value in (kwargs or {}).items()}
            place = given.get("device")
            if type(place) is int or (isinstance(place, str) and place.startswith("cuda")):
                given["device"] = cpu
            if given.get("pin_memory"):
                given["pin_memory"] = False
            if func is tensor.to and len(args) > 1 and isinstance(args[1], str) and args[1].startswith("cuda"):
                args = (args[0], cpu, *args[2:])
            if func is tensor.pin_memory:
                return args[0]
            return func(*map(moved, args), **given)

    OnCpu().__enter__()
