"""The attributes of the simulated device, NVIDIA's H100 SXM5 80 GB, by CUDA's names.

The figures are those of the CUDA C++ Programming Guide's table for compute capability 9.0 and of
the H100 data sheet; others (clocks, bus ids) are plausible values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30

H100 = {
    "MaxThreadsPerBlock": 1024,
    "MaxBlockDimX": 1024, "MaxBlockDimY": 1024, "MaxBlockDimZ": 64,
    "MaxGridDimX": 2**31 - 1, "MaxGridDimY": 65535, "MaxGridDimZ": 65535,
    "MaxSharedMemoryPerBlock": 48 * _KIB,
    "TotalConstantMemory": 64 * _KIB,
    "WarpSize": 32,
    "MaxPitch": 2**31 - 1,
    "MaxRegistersPerBlock": 65536,
    "ClockRate": 1_980_000,
    "TextureAlignment": 512, "TexturePitchAlignment": 32, "SurfaceAlignment": 512,
    "GpuOverlap": 1,
    "MultiProcessorCount": 132,
    "KernelExecTimeout": 0,
    "Integrated": 0,
    "CanMapHostMemory": 1,
    "ComputeMode": 0,
    "ConcurrentKernels": 1,
    "EccEnabled": 1,
    "PciBusId": 0x10, "PciDeviceId": 0, "PciDomainId": 0,
    "TccDriver": 0,
    "MemoryClockRate": 2_619_000,
    "GlobalMemoryBusWidth": 5120,
    "L2CacheSize": 50 * _MIB,
    "MaxThreadsPerMultiProcessor": 2048,
    "AsyncEngineCount": 3,
    "UnifiedAddressing": 1,
    "ComputeCapabilityMajor": 9, "ComputeCapabilityMinor": 0,
    "StreamPrioritiesSupported": 1,
    "GlobalL1CacheSupported": 1, "LocalL1CacheSupported": 1,
    "MaxSharedMemoryPerMultiprocessor": 228 * _KIB,
    "MaxRegistersPerMultiprocessor": 65536,
    "ManagedMemory": 1,
    "IsMultiGpuBoard": 0, "MultiGpuBoardGroupID": 0,
    "HostNativeAtomicSupported": 0,
    "SingleToDoublePrecisionPerfRatio": 2,
    "PageableMemoryAccess": 0,
    "ConcurrentManagedAccess": 1,
    "ComputePreemptionSupported": 1,
    "CanUseHostPointerForRegisteredMem": 1,
    "CooperativeLaunch": 1,
    "MaxSharedMemoryPerBlockOptin": 227 * _KIB,
    "HostRegisterSupported": 1,
    "PageableMemoryAccessUsesHostPageTables": 0,
    "DirectManagedMemAccessFromHost": 0,
    "MaxBlocksPerMultiprocessor": 32,
    "MaxPersistingL2CacheSize": 32_768_000,
    "MaxAccessPolicyWindowSize": 134_213_632,
    "ReservedSharedMemoryPerBlock": 1024,
    "SparseCudaArraySupported": 0,
    "HostRegisterReadOnlySupported": 0,
    "TimelineSemaphoreInteropSupported": 0,
    "MemoryPoolsSupported": 1,
    "GPUDirectRDMASupported": 0,
    "ClusterLaunch": 0,
    "DeferredMappingCudaArraySupported": 0,
    "IpcEventSupport": 0,
}

# In what the host device differs from the card: launches are limited
# (GTENSOR_HOSTCUDA_KERNEL_SECONDS), and cooperative ones answer "not supported".
HERE = {"KernelExecTimeout": 1, "CooperativeLaunch": 0}

# Of the driver's attributes that the runtime does not name (CUdevice_attribute).
DRIVER = {
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 0,
    "GENERIC_COMPRESSION_SUPPORTED": 0,
    "MULTICAST_SUPPORTED": 0,
}


@dataclass(frozen=True)
class Card:
    """A device to simulate: name, bytes of memory, attributes by CUDA's names."""

    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * _GIB
    attributes: dict[str, int] = field(default_factory=lambda: H100 | HERE)
    driver: dict[str, int] = field(default_factory=lambda: dict(DRIVER))

    @property
    def capability(self) -> int:
        """The compute capability, such as 90."""
        return (10 * self.attributes["ComputeCapabilityMajor"]
                + self.attributes["ComputeCapabilityMinor"])
