// PTX that CUTLASS has no wrapper for: bulk copies with a cache hint, vector loads from shared memory,
// asynchronous stores to a neighbour's shared memory, and waits that order plain accesses too.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cutlass/arch/barrier.h>

namespace chord {

using Barrier = cutlass::arch::ClusterTransactionBarrier;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// CUTLASS's wait carries no memory clobber; without the fence the compiler may hoist plain loads above it.
__device__ __forceinline__ void wait(const uint64_t* barrier, uint32_t phase) {
  Barrier::wait(barrier, phase);
  asm volatile("" ::: "memory");
}

constexpr uint64_t kEvictNormal = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
constexpr uint64_t kEvictFirst = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
constexpr uint64_t kEvictLast = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);

// Both addresses and `bytes` are multiples of 16; completion is counted on `barrier` in bytes.
__device__ __forceinline__ void bulk_copy(void* destination, const void* source, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ uint4 load_shared_128(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

__device__ __forceinline__ uint2 load_shared_64(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}

// 8 x 8 matrices of BF16 into shared memory, transposed; each lane names one row of 16 bytes (lanes 0..15 where two are stored).
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

// 16 bytes into the shared memory of another CTA of the cluster; counted on a barrier of that CTA.
__device__ __forceinline__ void store_remote_128(uint32_t remote_address, float4 value, uint32_t remote_barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote_address),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
               : "memory");
}

}  // namespace chord
