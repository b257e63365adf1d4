// Routed ids grouped by expert, by counting: blocks of sorted ids (the indexed layout) or rows that lie together (the grouped one).
//
//   ids      chunk 0 | chunk 1 | ...          one CTA a chunk
//   chunk    warp 0 | warp 1 | ...            consecutive ids, 32 at a time
//   rank     ids of the same expert before this one: of earlier chunks, earlier warps, earlier rounds of the warp, earlier lanes
//   shared   int sums[kWarps], totals[experts], starts[experts + 1] in blocks, earlier[experts], uint16 counts[kWarps][experts]
//
// Phases: kWhole, one CTA does all. kCount, every CTA leaves the counts of its chunk in `chunks` [experts][kChunks]; kPlace, a
// launch behind it, adds those of earlier chunks up. Every position is a sum of counts, so nothing depends on timing.
// Loops are not unrolled: a decode step's launch is one trip through code that it finds in no cache.
// Hazards: lanes of a warp add to one another's counts from round to round, so each round ends in __syncwarp. Counts before a
// warp in its chunk must fit 16 bits: the host bounds the ids.
#pragma once

#include <cuda/std/cstdint>

#include "chord/grid.cuh"

namespace chord::route_rows {

enum class Phase { kWhole, kCount, kPlace };

constexpr int kWarp = 32;
constexpr unsigned kEveryLane = 0xffffffffu;

struct Params {
  const void* ids;        // int32 or int64 [total]
  const int* expert_map;  // [map_size], or null: ids are local experts
  int* sorted_ids;        // [capacity], or null
  int* expert_ids;        // of each block, where sorted_ids are
  int* padded;            // slots in use, where sorted_ids are
  int64_t* offsets;       // [experts + 1], or null
  int* rows;              // [total]: the row that holds an id's result, -1 for an id that goes nowhere
  int* chunks;            // [experts][kChunks], unless one CTA does all
  int total, experts, map_size, block_m, capacity, wide, phase, reserved;
};
static_assert(sizeof(Params) == 96, "the host packs this struct without padding");

__device__ __forceinline__ int blocks_of(int rows, int block_m) {
  return static_cast<int>((static_cast<unsigned>(rows) + block_m - 1) / static_cast<unsigned>(block_m));
}

// Local expert of id `i`, -1 where it goes nowhere.
__device__ __forceinline__ int expert_of(const Params& p, int i) {
  const int64_t id = p.wide ? static_cast<const int64_t*>(p.ids)[i] : static_cast<const int*>(p.ids)[i];
  if (id < 0 || id >= (p.expert_map ? p.map_size : p.experts)) return -1;
  const int local = p.expert_map ? p.expert_map[id] : static_cast<int>(id);
  return local >= 0 && local < p.experts ? local : -1;
}

template <class Config>
struct Router {
  static constexpr int kWarps = Config::kThreads / kWarp;
  static_assert(kWarps == kWarp, "a lane reads what each warp left");
  static_assert(Config::kExperts <= 2 * Config::kThreads, "a thread scans two experts");
  static_assert(Config::kChunks == 4 * kWarp, "a lane reads the counts of four chunks");
  static_assert(Config::kSharedBytes == 4 * kWarps + 4 + Config::kExperts * (12 + 2 * kWarps), "the host counts shared memory as it is laid out here");

  const Params& p;
  int *sums, *totals, *starts, *earlier;
  uint16_t* counts;  // of the warp
  const int lane, warp, chunk, chunks;
  int from, to;  // ids of the warp
  int active;    // warps of this chunk that have any

  __device__ __forceinline__ Router(const Params& params, uint8_t* shared)
      : p(params), sums(reinterpret_cast<int*>(shared)), totals(sums + kWarps), starts(totals + params.experts),
        earlier(starts + params.experts + 1), lane(threadIdx.x % kWarp), warp(threadIdx.x / kWarp),
        chunk(static_cast<int>(blockIdx.x)), chunks(static_cast<int>(gridDim.x)) {
    counts = counts_of(warp);
    // At most 2^23 ids, in at most 4096 warps: sums of shares fit 32 bits.
    const int warps = chunks * kWarps;
    const int share = (p.total + warps * kWarp - 1) / (warps * kWarp) * kWarp;
    const int begin = min(chunk * kWarps * share, p.total);
    from = min(begin + warp * share, p.total);
    to = min(from + share, p.total);
    active = min((p.total - begin + share - 1) / share, kWarps);
  }

  __device__ __forceinline__ uint16_t* counts_of(int of) const { return reinterpret_cast<uint16_t*>(earlier + p.experts) + of * p.experts; }

  // Calls `take(i, expert, before)` for every id of the warp and counts it; `before`: what counts said of its expert so far.
  template <class Take>
  __device__ __forceinline__ void each_id(Take take) {
#pragma unroll 1
    for (int first = from; first < to; first += kWarp) {
      const int i = first + lane;
      const int expert = i < to ? expert_of(p, i) : -1;
      const unsigned same = __match_any_sync(kEveryLane, expert);
      const int before = expert < 0 ? 0 : counts[expert];
      __syncwarp();
      if (expert >= 0 && lane == 31 - __clz(same)) counts[expert] = static_cast<uint16_t>(before + __popc(same));
      __syncwarp();
      if (i < to) take(i, expert, before + __popc(same & ((1u << lane) - 1)));
    }
  }

  // Totals of the chunk, and as counts of each warp those of the warps before it.
  __device__ __forceinline__ void count() {
    if (warp < active)
#pragma unroll 1
      for (int expert = lane; expert < p.experts; expert += kWarp) counts[expert] = 0;
    __syncwarp();
    each_id([](int, int, int) {});
    __syncthreads();
#pragma unroll 1
    for (int expert = threadIdx.x; expert < p.experts; expert += Config::kThreads) {
      int before = 0;
#pragma unroll 4
      for (int other = 0; other < active; ++other) {
        const int own = counts_of(other)[expert];
        counts_of(other)[expert] = static_cast<uint16_t>(before);
        before += own;
      }
      totals[expert] = before;
      earlier[expert] = 0;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void leave_counts() const {
    for (int expert = threadIdx.x; expert < p.experts; expert += Config::kThreads) p.chunks[expert * Config::kChunks + chunk] = totals[expert];
  }

  // Totals of all chunks, and what earlier chunks have of them.
  __device__ __forceinline__ void add_chunks() const {
    const int first = 4 * lane;
    for (int expert = warp; expert < p.experts; expert += kWarps) {
      const int4 four = reinterpret_cast<const int4*>(p.chunks + expert * Config::kChunks)[lane];
      const int before = (first < chunk ? four.x : 0) + (first + 1 < chunk ? four.y : 0) + (first + 2 < chunk ? four.z : 0) +
                         (first + 3 < chunk ? four.w : 0);
      const int all = __reduce_add_sync(kEveryLane, four.x + four.y + four.z + four.w);
      const int sum = __reduce_add_sync(kEveryLane, before);
      if (lane == 0) {
        totals[expert] = all;
        earlier[expert] = sum;
      }
    }
    __syncthreads();
  }

  // First block of each expert, and the counts that the host's tensors hold.
  __device__ __forceinline__ void start() const {
    const int expert = 2 * threadIdx.x;
    const int even = expert < p.experts ? blocks_of(totals[expert], p.block_m) : 0;
    const int odd = expert + 1 < p.experts ? blocks_of(totals[expert + 1], p.block_m) : 0;
    int sum = even + odd;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kEveryLane, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == kWarp - 1) sums[warp] = sum;
    __syncthreads();
    const int first = sum - even - odd + __reduce_add_sync(kEveryLane, lane < warp ? sums[lane] : 0);
    if (threadIdx.x == 0) starts[0] = 0;
    if (expert < p.experts) starts[expert + 1] = first + even;
    if (expert + 1 < p.experts) starts[expert + 2] = first + even + odd;
    __syncthreads();
    if (chunk > 0) return;
    if (p.padded && threadIdx.x == 0) *p.padded = starts[p.experts] * p.block_m;
    if (p.offsets)
#pragma unroll 1
      for (int i = threadIdx.x; i <= p.experts; i += Config::kThreads) p.offsets[i] = starts[i];
  }

  __device__ __forceinline__ void place() {
    each_id([this](int i, int expert, int before) {
      const int slot = expert < 0 ? -1 : starts[expert] * p.block_m + earlier[expert] + before;
      if (p.sorted_ids && expert >= 0) p.sorted_ids[slot] = i;
      p.rows[i] = p.sorted_ids && expert >= 0 ? i : slot;
    });
  }

  // Sentinels behind each expert's ids, and the experts of blocks; the last block may be cut short by the capacity.
  __device__ __forceinline__ void fill() const {
#pragma unroll 1
    for (int expert = chunk * kWarps + warp; expert < p.experts; expert += chunks * kWarps) {
      const int first = starts[expert], last = starts[expert + 1], end = min(last * p.block_m, p.capacity);
#pragma unroll 1
      for (int slot = first * p.block_m + totals[expert] + lane; slot < end; slot += kWarp) p.sorted_ids[slot] = p.total;
#pragma unroll 1
      for (int block = first + lane; block < last; block += kWarp)
        if (block * p.block_m < end) p.expert_ids[block] = expert;
    }
  }
};

template <class Config>
__device__ __forceinline__ void kernel(const Params& p, uint8_t* shared) {
  let_next_start();
  const Phase phase = static_cast<Phase>(p.phase);
  Router<Config> router(p, shared);
  router.count();
  if (phase == Phase::kCount) return router.leave_counts();
  if (phase == Phase::kPlace) router.add_chunks();
  router.start();
  router.place();
  if (p.sorted_ids) router.fill();
}

}  // namespace chord::route_rows
