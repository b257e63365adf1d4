"""vLLM in this process, from the files of ``trees``: its selection, its method, its experts, over a platform that says it is an H200."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from pathlib import Path

import torch

from tests.clients.vllm import absent, stand_ins

SMS = 132


class Engine:
    """The classes that the scenarios use. ``device``: where layers lie, "cpu" with the reference backend, or a GPU."""

    def __init__(self, tree: Path, device: str = "cpu") -> None:
        sys.path.insert(0, str(tree))
        absent.install()
        # The compiled operators that importing vLLM looks for; those that layers use are in stand_ins.
        sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("vllm._C_stable_libtorch")
        import vllm.platforms as platforms
        from vllm.platforms.interface import DeviceCapability, PlatformEnum, UnspecifiedPlatform

        class Hopper(UnspecifiedPlatform):
            device_type, device_name = torch.device(device).type, "NVIDIA H200"

            @classmethod
            def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
                return DeviceCapability(9, 0)

            @classmethod
            def num_compute_units(cls, device_id: int = 0) -> int:
                return SMS

            @classmethod
            def get_device_name(cls, device_id: int = 0) -> str:
                return "NVIDIA H200"

            @classmethod
            def is_device_capability_family(cls, capability: int, device_id: int = 0) -> bool:
                return capability == 90

        platforms._current_platform = platform = Hopper()
        _tell_humming_the_device()
        if device == "cpu":
            _pretend_gpu()

        from chord_jit.integrations import vllm as plugin

        plugin.register()
        from compressed_tensors.quantization import QuantizationArgs
        from vllm.model_executor.layers.fused_moe import modular_kernel
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig, RoutingMethodType
        from vllm.model_executor.layers.fused_moe.experts import fused_humming_moe
        from vllm.model_executor.layers.fused_moe.oracle import int_wna16
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe_wna16

        platform._enum = PlatformEnum.CUDA
        stand_ins.install(fused_humming_moe)
        fused_humming_moe.num_compute_units = lambda index=0: SMS
        fused_humming_moe.get_forward_context = lambda: types.SimpleNamespace(dp_metadata=None)
        if device == "cpu":
            # torch has no accelerator to ask for the size of Humming's locks, which we do not use.
            fused_humming_moe.create_humming_locks = lambda device: torch.zeros(SMS * 8, dtype=torch.int32)
        # Humming is what vLLM picks on Hopper by itself since 0.32; before, its user asks for it.
        self.backend = "auto" if hasattr(int_wna16, "prioritize_humming") else "humming"
        self.device, self.experts, self.kernel, self.activation = device, fused_humming_moe, modular_kernel, MoEActivation
        self.config, self.parallel, self.routing = FusedMoEConfig, FusedMoEParallelConfig, RoutingMethodType
        self.method, self.quantization = compressed_tensors_moe_wna16.CompressedTensorsWNA16MoEMethod, QuantizationArgs

    def moe_config(
        self, *, experts: int, local: int, hidden: int, neurons: int, top_k: int, ep: int = 1, all2all: str | None = None,
        activation: str = "SILU",
    ) -> object:
        """A layer's config. ``neurons``: of this rank. ``ep``: ranks that share the experts. ``all2all``: between data-parallel ranks."""
        ranks = ep if all2all else 1
        parallel = self.parallel(
            tp_size=1, pcp_size=1, dp_size=ranks, ep_size=ep, tp_rank=0, pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=1, use_ep=ep > 1,
            all2all_backend=all2all or "allgather_reducescatter", enable_eplb=False,
        )
        return self.config(
            num_experts=experts, experts_per_token=top_k, hidden_dim=hidden, intermediate_size=neurons, num_local_experts=local,
            num_logical_experts=experts, activation=self.activation[activation], device=self.device,
            routing_method=self.routing.Renormalize, moe_parallel_config=parallel, in_dtype=torch.bfloat16, moe_backend=self.backend,
        )

    def layer(
        self, config: object, *, group: int = 32, expert_map: torch.Tensor | None = None, quantization: str = "compressed-tensors"
    ) -> Layer:
        """A layer of ``config`` without weights, as vLLM makes it before it loads a checkpoint. ``quantization``: of ``vllm serve``."""
        scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True}
        if quantization == "humming":
            from vllm.model_executor.layers.quantization.humming import HummingLayerQuantizationConfig, HummingMoEMethod

            described = {"quant_method": "compressed-tensors", "format": "pack-quantized", **scheme}
            method = HummingMoEMethod(HummingLayerQuantizationConfig.from_config(described), config)
        else:
            method = self.method(self.quantization(**scheme), None, config, "model.layers.1.mlp.experts")
        return Layer(config, method, expert_map, self)


class Layer(torch.nn.Module):
    """What vLLM's method wants of the module that holds its parameters."""

    def __init__(self, config: object, method: object, expert_map: torch.Tensor | None, engine: Engine) -> None:
        super().__init__()
        self.moe_config, self.method, self.engine = config, method, engine
        self.params_dtype, self.layer_name = torch.bfloat16, "model.layers.1.mlp.experts"
        self.register_buffer("expert_map", expert_map)
        self.activation, self.global_num_experts, self.apply_router_weight_on_input = config.activation, config.num_experts, False

    def _expert_routing_tables(self) -> None:
        return None

    def load(self, codes: dict[str, torch.Tensor], scales: dict[str, torch.Tensor]) -> None:
        """Creates the parameters, fills them as a loader would and has vLLM process them. Again over a live layer is a reload."""
        for name in [name for name, _ in self.named_parameters()]:
            delattr(self, name)
        config = self.moe_config
        torch.set_default_dtype(torch.bfloat16)  # as vLLM's loader does
        try:
            with torch.device(self.engine.device):
                self.method.create_weights(
                    self, config.num_local_experts, config.hidden_dim, config.intermediate_size_per_partition, torch.bfloat16
                )
            for name in ("w13", "w2"):
                getattr(self, f"{name}_weight_packed").data.copy_(codes[name])
                getattr(self, f"{name}_weight_scale").data.copy_(scales[name])
            self.method.process_weights_after_loading(self)
        finally:
            torch.set_default_dtype(torch.float32)

    @property
    def chosen(self) -> str:
        """The experts class that vLLM's oracle picked."""
        return self.method.experts_cls.__name__


def _tell_humming_the_device() -> None:
    """The architecture, which Humming's schemas ask of an extension that is compiled code."""

    class Info:
        sm_version, sm_major, sm_minor, sm_count, is_ppu, name, index = 90, 9, 0, SMS, False, "NVIDIA H200", 0

    with absent.triton():
        importlib.import_module("humming")
    if importlib.util.find_spec("humming.device"):
        from humming.device import DeviceInfo

        DeviceInfo._get_value = lambda self: Info


def _pretend_gpu() -> None:
    """What torch is asked where there is no GPU: to make one current, to give memory back."""
    torch.cuda.device = lambda index: contextlib.nullcontext()
    torch.accelerator.empty_cache = lambda: None
