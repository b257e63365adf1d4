// Row source of the indexed family for the WGMMA kernel: tiles of sorted ids, and their rows gathered into swizzled shared memory.
//
// Hopper's copy engine cannot gather, and a linear copy does not make the swizzle that WGMMA reads. So the four warps of the
// producer warpgroup copy 16 bytes a lane to computed addresses, eight lanes a line of 128 bytes, and report on the stage's
// barrier when theirs have landed. Those are writes of the generic proxy: readers fence before WGMMA reads them.
#pragma once

#include "chord/ptx.cuh"
#include "chord/rows.cuh"

namespace chord {

// 16 bytes to shared memory, the first `bytes` of them from `source`, the others zero.
__device__ __forceinline__ void copy_async_16(uint32_t destination, const void* source, uint32_t bytes, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination), "l"(source), "r"(bytes), "l"(policy)
               : "memory");
}

// One of the arrivals that `barrier` was set up for, once all of the thread's copies so far have landed.
__device__ __forceinline__ void arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Activations [rows, K], read row by row.
struct GatheredActivations {
  using Rows = IndexedParams;
  const __nv_bfloat16* x;
  const float* row_weights;  // of each routed row, or null
};

// The ids of a tile, spread over a warp: lane l holds ids l, l + 32, ...
template <int kBM>
struct TileIds {
  static constexpr int kEach = (kBM + 31) / 32;

  int id[kEach];
  int count;  // the leading run of valid ids: one behind a sentinel breaks the contract and must not be followed

  __device__ __forceinline__ TileIds(const IndexedParams& p, int first, int lane) : count(0) {
    bool runs = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = i * 32 + lane;
      const int64_t slot = int64_t(first) + place;
      id[i] = place < kBM && slot < p.id_capacity ? p.sorted_ids[slot] : -1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned valid = __ballot_sync(0xffffffffu, static_cast<unsigned>(id[i]) < static_cast<unsigned>(p.routed_rows));
      if (runs) count += valid == 0xffffffffu ? 32 : __ffs(~valid) - 1;
      runs = runs && valid == 0xffffffffu;
    }
  }

  // Ids, the rows of the activations that they read, and what their results are multiplied with: `scale` times their routing
  // weight, 1 where the caller has none.
  __device__ __forceinline__ void leave(int* ids, int* sources, float* factors, int top_k, const float* row_weights, float scale,
                                        int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = i * 32 + lane;
      if (place >= count) continue;
      ids[place] = id[i];
      sources[place] = top_k == 1 ? id[i] : id[i] / top_k;
      factors[place] = row_weights ? row_weights[id[i]] * scale : scale;
    }
  }
};

// Sub-blocks of kBM ids as token tiles. Every lane of a warp calls every function.
template <int kBM>
struct BlockWalk {
  // As in Walk, of one tile each; `first` counts slots.
  struct Group {
    int expert;
    int first;
    int rows, tiles, before;
  };

  const IndexedParams& p;
  const int lane;
  int total;  // token tiles

  __device__ __forceinline__ BlockWalk(const IndexedParams& params, int lane_index)
      : p(params), lane(lane_index), total(max(min(*params.padded / (kBM * params.sub_blocks), params.block_capacity), 0) * params.sub_blocks) {
  }

  __device__ __forceinline__ Group at(int index) const { return {p.expert_ids[block_of(index)], index * kBM, kBM, 1, index}; }

  // Whether no other tile takes the weights that tile `index` takes. The block behind the last one in use may hold anything: the
  // answer steers a cache hint and nothing else.
  __device__ __forceinline__ bool alone(int index) const {
    const int block = block_of(index), expert = p.expert_ids[block];
    return p.sub_blocks == 1 && (block == 0 || p.expert_ids[block - 1] != expert) &&
           (block + 1 == p.block_capacity || p.expert_ids[block + 1] != expert);
  }

  // The ids of a whole tile. A block whose expert is not in [0, experts) belongs to another rank and is left out.
  __device__ __forceinline__ TileIds<kBM> take(const Group& group) const {
    TileIds<kBM> ids(p, group.first, lane);
    if (static_cast<unsigned>(group.expert) >= static_cast<unsigned>(p.experts)) ids.count = 0;
    return ids;
  }

 private:
  __device__ __forceinline__ int block_of(int index) const { return p.sub_blocks == 1 ? index : index / p.sub_blocks; }
};

// One thread's share of a tile's rows: 16 bytes of each line of 64 k of every kRowsAtOnce-th row. `thread`: 0 .. kThreads - 1.
template <int kBM, int kK, int kThreads>
struct RowGather {
  static constexpr int kRowsAtOnce = kThreads / 8;

  const int* sources;  // of the activations, of the thread's rows
  int rows;            // past the tile's own, lines keep what they hold: it is never stored
  int first, column;

  __device__ __forceinline__ RowGather(const int* tile_sources, int count, int thread) {
    first = thread / 8;
    column = thread % 8 * 8;
    sources = tile_sources + first;
    rows = (count - first + kRowsAtOnce - 1) / kRowsAtOnce;
  }

  // Columns [from * 64, + kBlocks * 64) to lines at `tile`. Sources are read from shared memory at every stage: rows and
  // addresses of a whole tile do not fit into the producer's registers.
  template <int kBlocks>
  __device__ __forceinline__ void copy(const __nv_bfloat16* x, int from, uint32_t tile) const {
    const __nv_bfloat16* columns = x + from * 64 + column;
#pragma unroll 4
    for (int i = 0; i < rows; ++i) {
      const int row = first + i * kRowsAtOnce;
      const __nv_bfloat16* source = columns + int64_t(sources[i * kRowsAtOnce]) * kK;
      // 128-byte swizzle; the same chunk in each of the thread's rows where those are whole groups of 8 apart.
      const uint32_t line = tile + row * 128 + ((column / 8) ^ (kRowsAtOnce % 8 == 0 ? first : row) % 8) * 16;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        // Zeros past K: the next row's values may be NaN.
        const bool inside = kK % 64 == 0 || (from + block) * 64 + column < kK;
        copy_async_16(line + block * kBM * 128, inside ? source + block * 64 : x, inside ? 16 : 0, kEvictLast);
      }
    }
  }
};

}  // namespace chord
