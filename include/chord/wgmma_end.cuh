// The end of a tile of the WGMMA kernels: the two parts of a cut one joined, sums scaled or gated, transposed in shared memory, stored.
#pragma once

#include "chord/epilogue.cuh"
#include "chord/k_pieces.cuh"
#include "chord/ptx.cuh"

namespace chord {

// One warpgroup's part. An object of its own, so that what it derives from the thread's number lives in no register before.
template <class Kernel>
struct WgmmaEnd {
  using Config = typename Kernel::Settings;
  static constexpr bool kGathers = Kernel::kGathers;
  static constexpr int kBM = Kernel::kBM, kPanels = Kernel::kPanels, kGroups = Kernel::kGroups, kShare = Kernel::kShare;
  static constexpr int kUnitBlocks = Kernel::kUnitBlocks, kStagedBlocks = Kernel::kStagedBlocks, kColumns = Kernel::kColumns;
  static constexpr int kPitch = Kernel::kPitch;
  // Outputs between the parts of two warpgroups; 0 where each has a tile of its own.
  static constexpr int kGroupOutputs = Kernel::kGroupOutputs;

  const Kernel kernel;
  const int warp, lane, group;

  __device__ __forceinline__ explicit WgmmaEnd(uint8_t* shared)
      : kernel(shared), warp(kernel.warp), lane(kernel.lane), group(kernel.group()) {}

  // The result of a tile whose sums are complete.
  __device__ __forceinline__ void store(const typename Kernel::Params& p, const typename Kernel::Sums& sums, const typename Kernel::Record& tile) const {
#pragma unroll
    for (int first = 0; first < kUnitBlocks; first += kStagedBlocks) {
      stage_out(sums, first, tile);
      copy_out(p, first, tile);
    }
  }

  __device__ __forceinline__ void group_sync() const { cutlass::arch::NamedBarrier::sync(128, 1 + group); }

  // A part of a cut tile: the first of two leaves its sums behind and has no more to do, the second adds them to its own. Each
  // warpgroup does so on its own account.
  __device__ __forceinline__ bool join(const typename Kernel::Params& p, typename Kernel::Sums& sums, const typename Kernel::Record& tile) const {
    const int place = (tile.cut - 1) * kShare + Kernel::rank();
    const Joint joint(p.joints, place * kGroups + group);
    int* role = reinterpret_cast<int*>(kernel.shared + Kernel::kRolesAt) + group;
    const bool speaks = Kernel::thread() % 128 == 0;
    const int width = tile.width;
    float4* memory = p.sums + int64_t(place) * (kBM * kPanels * 32) + Kernel::thread();
    if (speaks) *role = joint.first();
    group_sync();
    if (*role) {
#pragma unroll
      for (int m = 0; m < kUnitBlocks; ++m)
#pragma unroll
        for (int i = 0; i < kBM / 2; i += 4)
          if (i < width / 2)
            __stcg(memory + (m * kBM / 2 + i) / 4 * kGroups * 128, make_float4(sums[m][i], sums[m][i + 1], sums[m][i + 2], sums[m][i + 3]));
      __threadfence();
      group_sync();
      if (speaks) joint.leave();
      return false;
    }
    if (speaks) joint.take();
    group_sync();
#pragma unroll
    for (int m = 0; m < kUnitBlocks; ++m)
#pragma unroll
      for (int i = 0; i < kBM / 2; i += 4) {
        if (i >= width / 2) break;
        const float4 other = __ldcg(memory + (m * kBM / 2 + i) / 4 * kGroups * 128);
        sums[m][i] += other.x, sums[m][i + 1] += other.y, sums[m][i + 2] += other.z, sums[m][i + 3] += other.w;
      }
    return true;
  }

  // Two sums as BF16, times the factors of their rows. Where all are one power of two, it scales the rounded pair as well.
  __device__ __forceinline__ static uint32_t scaled(float a, float b, const float2& factors) {
    return kGathers ? pack_bf16(a * factors.x, b * factors.y) : multiply_bf16x2(pack_bf16(a, b), 0x4f804f80u);
  }

  __device__ __forceinline__ static uint32_t gated(float gate, float next_gate, float up, float next_up, const float2& factors) {
    constexpr float kScale = Kernel::Decode::kSumScale;
    const float first = swiglu(gate * kScale, up * kScale), second = swiglu(next_gate * kScale, next_up * kScale);
    return kGathers ? pack_bf16(first * factors.x, second * factors.y) : pack_bf16(first, second);
  }

  // Of the two rows that a lane holds in the eight from `row` on.
  __device__ __forceinline__ float2 factors_of(const typename Kernel::Record& tile, int row) const {
    return kGathers ? *reinterpret_cast<const float2*>(kernel.factors() + tile.row + row + lane % 4 * 2) : float2{};
  }

  __device__ __forceinline__ uint32_t staging() const { return shared_address(kernel.shared + Kernel::kStagingAt) + group * kBM * kPitch; }

  // Sums to BF16, transposed: one line of staging holds one token row's outputs of the warpgroup. Interleaved weights without
  // SwiGLU keep their gate columns first, then their up columns.
  __device__ __forceinline__ void stage_out(const typename Kernel::Sums& sums, int first, const typename Kernel::Record& tile) const {
    group_sync();
    const int width = tile.width, matrix = lane / 8, half = Config::kSwiglu ? 0 : matrix % 2, token = Config::kSwiglu ? lane % 16 : matrix / 2 * 8 + lane % 8;
#pragma unroll
    for (int m = 0; m < kStagedBlocks; ++m) {
      const int neurons = m * 4 + warp % 4;
      const int chunk = Config::kSwiglu ? neurons : Config::kInterleaved ? half * kStagedBlocks * 4 + neurons : neurons * 2 + half;
      const uint32_t line = staging() + token * kPitch + chunk * 16;
#pragma unroll
      for (int i = 0; i < kBM / 2; i += 8) {
        if (i >= width / 2) break;
        const float* value = sums[first + m] + i;
        const float2 own = factors_of(tile, i * 2), next = factors_of(tile, i * 2 + 8);
        if constexpr (Config::kSwiglu)
          store_matrices(line + i * 2 * kPitch, gated(value[0], value[1], value[2], value[3], own),
                         gated(value[4], value[5], value[6], value[7], next));
        else
          store_matrices(line + i * 2 * kPitch, scaled(value[0], value[1], own), scaled(value[2], value[3], own),
                         scaled(value[4], value[5], next), scaled(value[6], value[7], next));
      }
    }
    group_sync();
  }

  // Only the tile's own rows: what lies behind them belongs to another expert or to nobody. Plain stores: a bulk copy a row
  // would keep the copy engine from the next tile's loads.
  __device__ __forceinline__ void copy_out(const typename Kernel::Params& p, int first, const typename Kernel::Record& tile) const {
    constexpr int kSides = Config::kInterleaved && !Config::kSwiglu ? 2 : 1, kSideColumns = kColumns / kSides;
    constexpr int kLimit = Config::kInterleaved ? Config::kN / 2 : Config::kN;
    using Chunk = typename ChunkOf<kLimit % 8 == 0>::Type;
    constexpr int kChunk = sizeof(Chunk) / 2, kChunks = kColumns / kChunk, kLines = 128 / kChunks;
    const int chunk = Kernel::thread() % 128 % kChunks, line = Kernel::thread() % 128 / kChunks;
    const int side = chunk * kChunk / kSideColumns, within = chunk * kChunk % kSideColumns;
    const int column = (tile.panel * 128 + group * kGroupOutputs + first * 64) / (Config::kInterleaved ? 2 : 1) + within;
    if (column >= kLimit) return;
    const uint8_t* from = kernel.shared + Kernel::kStagingAt + (group * kBM + line) * kPitch + chunk * sizeof(Chunk);
    const int first_row = tile.row + line, rows = tile.rows - line;
    __nv_bfloat16* to = p.out + int64_t(kGathers ? 0 : first_row) * (kLimit * kSides) + side * kLimit + column;
#pragma unroll 8
    for (int row = 0; row < rows; row += kLines) {
      const int64_t target = kGathers ? kernel.ids()[first_row + row] : row;
      *reinterpret_cast<Chunk*>(to + target * (kLimit * kSides)) = *reinterpret_cast<const Chunk*>(from + row * kPitch);
    }
  }
};

}  // namespace chord
