// W4A16 on WGMMA for short K: the rows of a tile stay in shared memory while panel after panel of the weight passes by. For many
// rows per expert, gathered by id.
//
// Unit: up to kBM token rows, whole K, and kUnitPanels panels of 128 outputs. Its rows are gathered once; two buffers hold the rows
//   of this unit and of the next.
// Roles: one producer warp finds the units, leaves their records and fills a ring of kStages panels by bulk copies; the other three
//   warps of its warpgroup gather. Consumer warpgroups, three where their sums leave room, take panels in turn: while one multiplies
//   and has the tensor cores to itself, the others store their tiles, which takes as long as the products of one or two panels.
// Shared memory: [rows: 2] [output staging of each warpgroup] [stages: panels] [ids: 2] [sources: 2] [factors: 2] [records: 2] [barriers].
// Units: from a ticket counter, panels of a row tile fastest, then row tiles.
// Hazards: rows, record and lists of a buffer are rewritten only when all warpgroups have stored their last tile of it; a stage is
//   free as soon as its last codes are in registers; fragments are overwritten only behind the wait for the group that read them.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "chord/gathered_rows.cuh"
#include "chord/ptx.cuh"
#include "chord/ring.cuh"
#include "chord/unit_codes.cuh"
#include "chord/wgmma.cuh"
#include "chord/wgmma_end.cuh"

namespace chord {

struct W4A16ResidentParams {
  GatheredActivations activations;
  const uint8_t* weight;
  __nv_bfloat16* out;
  unsigned* ticket;  // this launch's own while it runs; zero before and after
  IndexedParams rows;
};

template <class Config>
struct W4A16Resident {
  using Settings = Config;
  using Params = W4A16ResidentParams;
  using Decode = FusedDecoder;
  using Cursor = RingCursor<Config::kStages>;
  using Widths = decltype(Config::kWidths);

  static constexpr bool kGathers = true;
  static constexpr int kBM = Config::kBM, kStages = Config::kStages, kUnitPanels = Config::kUnitPanels;
  static constexpr int kGroups = Config::kConsumers, kPanels = 1, kShare = 1, kUnitBlocks = 2, kStagedBlocks = 1, kGroupOutputs = 0;
  static constexpr int kThreads = (kGroups + 1) * 128, kGatherers = 96;
  static_assert(kThreads == Config::kThreads, "host and device disagree on the threads");
  static_assert(Widths::of(kBM) == kBM && Widths::kMost == kBM, "the widest instruction must hold a whole tile");
  static_assert(kBM % 8 == 0, "rows must fill whole swizzle groups");
  static_assert(Config::kK % 32 == 0 && Config::kN % 8 == 0, "padding serves no other shape");

  static constexpr int kBlockBytes = 4608;
  static constexpr int kBlocks = (Config::kK + 63) / 64;
  static constexpr int kRowPanels = Config::kInterleaved ? (Config::kN / 2 + 63) / 64 : (Config::kN + 127) / 128;
  static constexpr int kUnits = (kRowPanels + kUnitPanels - 1) / kUnitPanels;  // of a row tile

  static constexpr int kRowsBytes = kBM * 128 * kBlocks, kWeightBytes = kBlocks * kBlockBytes;
  static constexpr int kColumns = Config::kSwiglu ? 32 : 64;  // staged outputs of a warpgroup
  static constexpr int kPitch = kColumns * 2 + 16;            // +16: rows of a matrix store fall into different banks
  static constexpr int kStagingAt = 2 * kRowsBytes;
  static constexpr int kWeightAt = kStagingAt + (kGroups * kBM * kPitch + 127) / 128 * 128;
  static constexpr int kIdsAt = kWeightAt + kStages * kWeightBytes;
  static constexpr int kSourcesAt = kIdsAt + 2 * kBM * 4, kFactorsAt = kSourcesAt + 2 * kBM * 4;
  static constexpr int kRecordsAt = kFactorsAt + 2 * kBM * 4;
  static constexpr int kRecordBytes = 32;
  static constexpr int kBarriersAt = kRecordsAt + 2 * kRecordBytes;
  static constexpr int kSharedBytes = kBarriersAt + (2 * kStages + 6) * 8;
  static_assert(kSharedBytes == Config::kSharedBytes, "host and device disagree on shared memory");

  // Register budget: the sum over warpgroups must fit what the launch gave, or setmaxnreg waits for ever.
  static constexpr int kEntryRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = (kEntryRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;

  // The leading warp looks for the next unit after this many panels: all warpgroups have then left the unit before, so it need not
  // wait, and most of a unit is left to hide the gathering behind.
  static constexpr int kAhead = kStages + kGroups;

  struct Record {
    int row, rows;  // place of the ids, how many; rows = 0 ends the stream
    int width;      // rows of the instruction
    int panel, end;
    int expert;
    bool alone;  // no other tile takes these weights
    int unused;
  };
  static_assert(sizeof(Record) == kRecordBytes);

  using Codes = UnitCodes<kUnitBlocks>;
  using Sums = float[kUnitBlocks][kBM / 2];

  uint8_t* const shared;
  const int warp, lane;

  __device__ __forceinline__ explicit W4A16Resident(uint8_t* memory)
      : shared(memory), warp(__shfl_sync(0xffffffffu, thread() / 32, 0)), lane(thread() % 32) {}

  // Read anew by every object: what one part of a tile derives from it must not live in registers through the others.
  __device__ __forceinline__ static int thread() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
  }

  __device__ __forceinline__ static int rank() { return 0; }
  __device__ __forceinline__ int group() const { return warp / 4; }

  __device__ __forceinline__ int* ids() const { return reinterpret_cast<int*>(shared + kIdsAt); }
  __device__ __forceinline__ int* sources() const { return reinterpret_cast<int*>(shared + kSourcesAt); }
  __device__ __forceinline__ float* factors() const { return reinterpret_cast<float*>(shared + kFactorsAt); }
  __device__ __forceinline__ Record& record(int buffer) const { return reinterpret_cast<Record*>(shared + kRecordsAt)[buffer]; }

  __device__ __forceinline__ uint64_t* full(int stage) const { return reinterpret_cast<uint64_t*>(shared + kBarriersAt) + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(kStages + stage); }
  // Of a buffer: its record is written; its rows have landed; all warpgroups are done with it.
  __device__ __forceinline__ uint64_t* told(int buffer) const { return full(2 * kStages + buffer); }
  __device__ __forceinline__ uint64_t* landed(int buffer) const { return full(2 * kStages + 2 + buffer); }
  __device__ __forceinline__ uint64_t* left(int buffer) const { return full(2 * kStages + 4 + buffer); }

  // The nth unit of a CTA: its buffer, and the phase of that buffer's barriers.
  static __device__ __forceinline__ int buffer_of(int n) { return n % 2; }
  static __device__ __forceinline__ uint32_t phase_of(int n) { return n / 2 % 2; }

  // ---------------------------------------------------------------- producer
  // Finds the nth unit of the CTA and leaves its record. `ticket`: the next to be looked at.
  __device__ __forceinline__ void prepare(const Params& p, const BlockWalk<kBM>& walk, int n, int& ticket) const {
    const int tickets = walk.total * kUnits, buffer = buffer_of(n), place = buffer * kBM;
    Record found = {place};
    wait(left(buffer), phase_of(n) ^ 1);
#pragma unroll 1
    while (ticket < tickets && found.rows == 0) {
      // One fetch a ticket makes `tickets` fetches a launch: the wrap leaves zero behind for the next one.
      int next = 0;
      if (lane == 0) next = gridDim.x + atomicInc(p.ticket, tickets - 1);
      const int tile = ticket / kUnits;
      const auto group = walk.at(tile);
      const auto taken = walk.take(group);
      if (taken.count > 0) {
        const int panel = (ticket - tile * kUnits) * kUnitPanels;
        found = {place, taken.count, Widths::of(taken.count), panel, min(panel + kUnitPanels, kRowPanels), group.expert, walk.alone(tile)};
        taken.leave(ids() + place, sources() + place, factors() + place, p.rows.top_k, p.activations.row_weights,
                    Config::kSwiglu ? 1.0f : Decode::kSumScale, lane);
      }
      ticket = __shfl_sync(0xffffffffu, next, 0);
    }
    if (lane == 0) record(buffer) = found;
    __syncwarp();
    if (cute::elect_one_sync()) {
      Barrier::arrive(told(buffer));
      Barrier::arrive(landed(buffer));
    }
  }

  __device__ __forceinline__ void produce(const Params& p) const {
    const BlockWalk<kBM> walk(p.rows, lane);
    Cursor cursor;
    int ticket = blockIdx.x, n = -1, panels = 0, i = 0;
    const uint8_t* weight = nullptr;
#pragma unroll 1
    while (true) {
      if (i == min(panels, kAhead)) prepare(p, walk, n + 1, ticket);
      if (i == panels) {
        const Record& unit = record(buffer_of(++n));
        if (unit.rows == 0) break;
        weight = p.weight + (int64_t(unit.expert) * kRowPanels + unit.panel) * kWeightBytes;
        panels = unit.end - unit.panel;
        i = 0;
        continue;
      }
      wait(empty(cursor.stage), cursor.phase ^ 1);
      if (cute::elect_one_sync()) {
        Barrier::arrive_and_expect_tx(full(cursor.stage), kWeightBytes);
        bulk_copy(shared + kWeightAt + cursor.stage * kWeightBytes, weight + int64_t(i) * kWeightBytes, kWeightBytes, full(cursor.stage),
                  record(buffer_of(n)).alone ? kEvictFirst : kEvictNormal);
      }
      cursor.advance();
      ++i;
    }
  }

  __device__ __forceinline__ void gather(const Params& p) const {
#pragma unroll 1
    for (int n = 0;; ++n) {
      const int buffer = buffer_of(n);
      wait(told(buffer), phase_of(n));
      const int rows = record(buffer).rows;
      if (rows > 0)
        RowGather<kBM, Config::kK, kGatherers>(sources() + buffer * kBM, rows, thread() - kGroups * 128 - 32)
            .template copy<kBlocks>(p.activations.x, 0, shared_address(shared + buffer * kRowsBytes));
      arrive_when_copied(landed(buffer));
      if (rows == 0) break;
    }
  }

  // ---------------------------------------------------------------- consumers
  __device__ __forceinline__ void consume(const Params& p) const {
    Cursor cursor;
    int turn = 0;
    if (group() == kGroups - 1) pass_turn();
#pragma unroll 1
    for (int n = 0;; ++n) {
      const int buffer = buffer_of(n);
      wait(landed(buffer), phase_of(n));
      // Rows were written through the generic proxy, WGMMA reads through the asynchronous one.
      cutlass::arch::fence_view_async_shared();
      Record tile = record(buffer);
      if (tile.rows == 0) break;
#pragma unroll 1
      for (; tile.panel < tile.end; ++tile.panel) {
        if (turn == group()) {
          wait(full(cursor.stage), cursor.phase);
          W4A16Resident(shared).multiply(p, cursor.stage, buffer, tile);
        }
        turn = turn == kGroups - 1 ? 0 : turn + 1;
        cursor.advance();
      }
      Barrier::arrive(left(buffer));
    }
  }

  // The tensor cores are one warpgroup's at a time: those that multiply at once would also store at once.
  __device__ __forceinline__ void take_turn() const { cutlass::arch::NamedBarrier::sync(2 * 128, 1 + kGroups + group()); }
  __device__ __forceinline__ void pass_turn() const {
    cutlass::arch::NamedBarrier::arrive(2 * 128, 1 + kGroups + (group() == kGroups - 1 ? 0 : group() + 1));
  }

  __device__ __forceinline__ void multiply(const Params& p, int stage, int buffer, const Record& tile) const {
    Sums sums = {};
    accumulate<0>(sums, stage, buffer, tile.width);
    WgmmaEnd<W4A16Resident>(shared).store(p, sums, tile);
  }

  // A panel over whole K in the narrowest instruction that holds the rows. All widths share the registers of the widest.
  template <int kIndex>
  __device__ __forceinline__ void accumulate(Sums& sums, int stage, int buffer, int width) const {
    constexpr int kWidth = Widths::at(kIndex);
    if constexpr (kWidth < kBM) {
      if (width != kWidth) return accumulate<kIndex + 1>(sums, stage, buffer, width);
    }
    // k16 steps of a group of products: few where the sums leave no room for fragments.
    constexpr int kSteps = kUnitBlocks * kWidth > 256 ? 1 : Config::kGroupSteps;
    constexpr int kRounds = 4 / kSteps;
    static_assert(kRounds % 2 == 0, "a block must leave the two fragment buffers as it found them");
    Fragment fragments[2][kSteps][kUnitBlocks];
    Codes codes;
    const int unit = warp % 4;
    const uint32_t blocks = shared_address(shared + kWeightAt + stage * kWeightBytes) + Codes::offset(unit, lane);
    const uint32_t rows = __shfl_sync(0xffffffffu, wgmma_descriptor(shared_address(shared + buffer * kRowsBytes)), 0);
    codes.load(blocks, unit, lane);
    codes.template decode<kSteps>(fragments[0], 0);
    take_turn();
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) {
      const bool last = block == kBlocks - 1;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int now = round % 2;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
          for (int m = 0; m < kUnitBlocks; ++m)
            Wgmma<kWidth>::multiply(sums[m], fragments[now][step][m], rows + block * kBM * 8 + (round * kSteps + step) * 2);
        wgmma_commit();
        if (round == kRounds - 1 && last) pass_turn();
        wgmma_wait<1>();
        if (round < kRounds - 1 || !last) codes.template decode<kSteps>(fragments[now ^ 1], (round + 1) % kRounds * kSteps);
        if (round == kRounds - 2) {
          if (last)
            Barrier::arrive(empty(stage));
          else
            codes.load(blocks + (block + 1) * kBlockBytes, unit, lane);
        }
      }
    }
    wgmma_wait<0>();
  }

  // ---------------------------------------------------------------- whole kernel
  __device__ __forceinline__ void run(const Params& p) const {
    if (thread() == 0) {
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(full(i), 1);
        Barrier::init(empty(i), 128);
      }
      for (int i = 0; i < 2; ++i) {
        Barrier::init(told(i), 1);
        Barrier::init(landed(i), 1 + kGatherers);
        Barrier::init(left(i), kGroups * 128);
      }
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    if (warp >= kGroups * 4) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (warp == kGroups * 4)
        produce(p);
      else
        gather(p);
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(p);
    }
  }
};

}  // namespace chord
