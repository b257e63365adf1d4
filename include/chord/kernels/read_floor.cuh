// Read-only floor: streams the packed bytes of the active experts once and adds them up, nothing else.
//
//   expert   [ run 0 | run 1 | ... ]  a run is contiguous; a CTA reads whole runs
//   order    strided: run = cta, cta + grid, ...   contiguous: one range of runs per CTA
//            dynamic: first run = cta, then tickets, as the tile kernels take theirs (a run is then one panel)
//   bulk     one producer warp fills a ring of kStages chunks, kConsumers warps add each chunk up
//   loads    no shared memory, kUnroll 16-byte loads in flight per thread
//   shared   ring of kStages * kChunkBytes, full[kStages], empty[kStages], filled[kStages]
// Hazards: a stage is refilled only after every consumer warp arrived on its `empty`; `filled` of a stage is written
// before its `full` completes, and 0 in it ends the stream. The last ticket writes zero back.
#pragma once

#include <chord/ptx.cuh>

namespace chord::read_floor {

enum class Order { kStrided, kContiguous, kDynamic };

constexpr int kMaxActive = 512;
constexpr int kWarp = 32;

struct Params {
  const uint8_t* weight;
  uint32_t* sums;    // one sum per consuming warp: the host checks that every byte arrived
  uint32_t* ticket;  // zero between launches
  uint64_t expert_bytes;
  uint32_t run_bytes;
  uint32_t runs_per_expert;
  uint32_t runs;
  uint32_t reserved;
  uint16_t experts[kMaxActive];  // by value: the floor pays for no look-up in device memory
};
static_assert(sizeof(Params) == 48 + 2 * kMaxActive, "the host packs this struct without padding");

struct Piece {
  const uint8_t* source;
  uint32_t bytes;
};

__device__ __forceinline__ Piece piece(const Params& params, uint32_t run) {
  const uint32_t slot = run / params.runs_per_expert;
  const uint64_t offset = uint64_t(run - slot * params.runs_per_expert) * params.run_bytes;
  const uint64_t left = params.expert_bytes - offset;
  const uint64_t start = params.experts[slot] * params.expert_bytes + offset;
  return {params.weight + start, left < params.run_bytes ? uint32_t(left) : params.run_bytes};
}

// The runs of one CTA. `next` costs a ticket in the dynamic order, so take it before the current run is issued.
template <Order kOrder>
struct Walk {
  uint32_t run, end, step;

  __device__ explicit Walk(const Params& params) : run(blockIdx.x), end(params.runs), step(gridDim.x) {
    if constexpr (kOrder == Order::kContiguous) {
      run = uint32_t(uint64_t(params.runs) * blockIdx.x / gridDim.x);
      end = uint32_t(uint64_t(params.runs) * (blockIdx.x + 1) / gridDim.x);
      step = 1;
    }
  }

  __device__ uint32_t next(const Params& params) const {
    // One ticket per run read makes `runs` tickets a launch: the wrap leaves zero behind.
    if constexpr (kOrder == Order::kDynamic) return step + atomicInc(params.ticket, params.runs - 1);
    return run + step;
  }
};

template <class Config>
struct Ring {
  uint8_t* chunks;
  uint64_t* full;
  uint64_t* empty;
  volatile uint32_t* filled;  // volatile: ordered against the barrier instructions, which carry no memory clobber

  __device__ explicit Ring(uint8_t* shared)
      : chunks(shared),
        full(reinterpret_cast<uint64_t*>(shared + Config::kStages * Config::kChunkBytes)),
        empty(full + Config::kStages),
        filled(reinterpret_cast<volatile uint32_t*>(empty + Config::kStages)) {}
};

template <class Config>
struct Cursor {
  uint32_t stage = 0, phase = 0;

  __device__ void advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ uint32_t add_words(uint4 value) { return value.x + value.y + value.z + value.w; }

__device__ __forceinline__ void store_sum(const Params& params, uint32_t sum, uint32_t warps) {
  sum = __reduce_add_sync(~0u, sum);
  if (threadIdx.x % kWarp == 0) params.sums[blockIdx.x * warps + threadIdx.x / kWarp] = sum;
}

template <class Config>
__device__ void produce(const Params& params, const Ring<Config>& ring) {
  constexpr uint64_t policy = Config::kEvictFirst ? kEvictFirst : kEvictNormal;
  Cursor<Config> at;
  Walk<Order(Config::kOrder)> walk(params);
  while (walk.run < walk.end) {
    const uint32_t next = walk.next(params);
    const Piece run = piece(params, walk.run);
    for (uint32_t offset = 0; offset < run.bytes; offset += Config::kChunkBytes) {
      const uint32_t bytes = min(run.bytes - offset, uint32_t(Config::kChunkBytes));
      wait(ring.empty + at.stage, at.phase ^ 1);
      ring.filled[at.stage] = bytes;
      Barrier::arrive_and_expect_tx(ring.full + at.stage, bytes);
      bulk_copy(ring.chunks + at.stage * Config::kChunkBytes, run.source + offset, bytes, ring.full + at.stage, policy);
      at.advance();
    }
    walk.run = next;
  }
  wait(ring.empty + at.stage, at.phase ^ 1);
  ring.filled[at.stage] = 0;
  Barrier::arrive(ring.full + at.stage);
}

template <class Config>
__device__ void consume(const Params& params, const Ring<Config>& ring) {
  constexpr uint32_t kStride = Config::kConsumers * kWarp * sizeof(uint4);
  Cursor<Config> at;
  uint32_t sum = 0;
  while (true) {
    wait(ring.full + at.stage, at.phase);
    const uint32_t bytes = ring.filled[at.stage];
    if (bytes == 0) break;
    const uint32_t chunk = shared_address(ring.chunks + at.stage * Config::kChunkBytes);
#pragma unroll 8
    for (uint32_t offset = threadIdx.x * sizeof(uint4); offset < bytes; offset += kStride) sum += add_words(load_shared_128(chunk + offset));
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Barrier::arrive(ring.empty + at.stage);
    at.advance();
  }
  store_sum(params, sum, Config::kConsumers);
}

template <class Config>
__device__ void read_bulk(const Params& params) {
  extern __shared__ __align__(128) uint8_t shared[];
  const Ring<Config> ring(shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      Barrier::init(ring.full + stage, 1);
      Barrier::init(ring.empty + stage, Config::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < Config::kConsumers * kWarp) {
    consume<Config>(params, ring);
  } else if (threadIdx.x == Config::kConsumers * kWarp) {
    produce<Config>(params, ring);
  }
}

__device__ __forceinline__ uint4 load_streaming_128(const uint8_t* source) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source));
  return value;
}

template <class Config>
__device__ void read_loads(const Params& params) {
  constexpr uint32_t kStride = Config::kConsumers * kWarp * sizeof(uint4);
  uint32_t sum = 0;
  Walk<Order(Config::kOrder)> walk(params);
  for (; walk.run < walk.end; walk.run += walk.step) {
    const Piece run = piece(params, walk.run);
    const uint8_t* source = run.source + threadIdx.x * sizeof(uint4);
    if (run.bytes == Config::kUnroll * kStride) {
      uint4 values[Config::kUnroll];
#pragma unroll
      for (int i = 0; i < Config::kUnroll; ++i) values[i] = load_streaming_128(source + i * kStride);
#pragma unroll
      for (int i = 0; i < Config::kUnroll; ++i) sum += add_words(values[i]);
    } else {
      for (uint32_t offset = threadIdx.x * sizeof(uint4); offset < run.bytes; offset += kStride)
        sum += add_words(load_streaming_128(run.source + offset));
    }
  }
  store_sum(params, sum, Config::kConsumers);
}

template <class Config>
__device__ __forceinline__ void kernel(const Params& params) {
  static_assert(!Config::kBulk || Config::kChunkBytes % 128 == 0, "a stage must stay aligned for bulk copies");
  static_assert(Config::kBulk || Order(Config::kOrder) == Order::kStrided, "plain loads know the strided order only");
  if constexpr (Config::kBulk) {
    read_bulk<Config>(params);
  } else {
    read_loads<Config>(params);
  }
}

}  // namespace chord::read_floor
