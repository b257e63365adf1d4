// W4A16 on WGMMA with the INT4 weight as operand A in registers: output features on M, token rows on N. For many rows per expert.
//
// Tile: up to kBM token rows x kPanels * 128 outputs, K streamed in stages of kStageBlocks * 64. A tile of fewer rows takes the
//   narrowest of kWidths that holds them.
// Roles: one producer warp (of a warpgroup that gives its registers away) finds the tiles and fills a ring of kStages stages:
//   activations by TMA in the 128-byte swizzle that WGMMA reads, packed weight blocks by bulk copies, all on one mbarrier.
//   Rows named by ids are gathered instead, by all four warps of that warpgroup (gathered_rows.cuh).
//   Consumer warpgroups own kUnitBlocks m64 blocks each; a k16 step decodes a fragment while the products of the last group run.
// Shared memory: [stages: rows] [output staging] [stages: blocks] [records] [ids] [sources] [factors] [barriers] [roles]; ids to
//   factors where rows are gathered.
// Tiles: from a ticket counter, rows of an expert fastest, then outputs, then experts; the last waves cut along K (k_pieces.cuh).
// Hazards: fragments are overwritten only behind the wait for the group that read them (two buffers, one group in flight);
//   staging is rewritten only behind the group's barrier; rows past a tile's own are computed and never stored; a record
//   lives until the stage of the next tile is freed, and what it has of ids, sources and factors with it.
#pragma once

#include <cute/util/type_traits.hpp>
#include <cutlass/arch/reg_reconfig.h>

#include "chord/gathered_rows.cuh"
#include "chord/grouped_rows.cuh"
#include "chord/k_pieces.cuh"
#include "chord/ptx.cuh"
#include "chord/ring.cuh"
#include "chord/unit_codes.cuh"
#include "chord/wgmma.cuh"
#include "chord/wgmma_end.cuh"

namespace chord {

// Activations [rows, K] in boxes of kBoxRows x 64.
struct BoxedActivations {
  using Rows = GroupedParams;
  cute::TmaDescriptor x;
};

template <class Activations>
struct W4A16WgmmaParams {
  Activations activations;
  const uint8_t* weight;
  __nv_bfloat16* out;
  unsigned* ticket;  // this launch's own while it runs; zero before and after
  unsigned* joints;  // likewise: two bits for each cut and warpgroup
  float4* sums;      // room for the sums of one tile for each CTA
  typename Activations::Rows rows;
};

template <class Config>
struct W4A16Wgmma {
  using Settings = Config;
  using Decode = FusedDecoder;
  static constexpr bool kGathers = Config::kRows == RowSource::kIndexed;
  using Params = W4A16WgmmaParams<cute::conditional_t<kGathers, GatheredActivations, BoxedActivations>>;
  using Rows = cute::conditional_t<kGathers, BlockWalk<Config::kBM>, Walk<Config::kRows, Config::kBM>>;
  using Cursor = RingCursor<Config::kStages>;

  using Widths = decltype(Config::kWidths);

  static constexpr int kBM = Config::kBM, kBoxRows = Config::kBoxRows;
  static constexpr int kPanels = Config::kPanels, kStageBlocks = Config::kStageBlocks, kStages = Config::kStages;
  static constexpr int kGroups = Config::kConsumers;
  static_assert(Widths::of(kBM) == kBM && Widths::kMost == kBM, "the widest instruction must hold a whole tile");
  static_assert(kBM % kBoxRows == 0 && kBoxRows % 8 == 0, "boxes must fill whole swizzle groups");
  static_assert(Config::kK % 32 == 0 && Config::kN % 8 == 0, "padding serves no other shape");

  static constexpr int kBlockBytes = 4608;
  static constexpr int kBlocks = (Config::kK + 63) / 64;
  static constexpr int kTileStages = kBlocks / kStageBlocks;
  static_assert(kBlocks % kStageBlocks == 0, "a stage must not reach past K");
  static constexpr int kRowPanels = Config::kInterleaved ? (Config::kN / 2 + 63) / 64 : (Config::kN + 127) / 128;
  // CTAs of a cluster take neighbouring outputs of the same rows; each loads a share of the rows for all.
  static constexpr int kShare = Config::kShare;
  static_assert(kShare == 1 || !kGathers, "gathered rows reach one CTA");
  static constexpr int kTilesN = kRowPanels / (kPanels * kShare);
  static_assert(kRowPanels % (kPanels * kShare) == 0, "a tile must not reach into the next expert's panels");

  static constexpr int kUnitBlocks = kPanels * 2 / kGroups;  // m64 blocks of a warpgroup: one or two
  static_assert(kUnitBlocks == 1 || kUnitBlocks == 2, "a warpgroup owns half a panel or a whole one");
  static constexpr int kGroupOutputs = kUnitBlocks * 64;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static_assert(kThreads == Config::kThreads, "host and device disagree on the threads");

  static constexpr int kRowsBytes = kBM * 128 * kStageBlocks, kWeightBytes = kPanels * kStageBlocks * kBlockBytes;
  static constexpr int kStagedBlocks = Config::kStagedBlocks;  // m64 blocks of a warpgroup that are staged at a time
  static_assert(kStagedBlocks == 1 || kStagedBlocks == kUnitBlocks, "blocks are staged one by one or all at once");
  static constexpr int kColumns = kStagedBlocks * (Config::kSwiglu ? 32 : 64);  // staged outputs of a warpgroup
  static constexpr int kPitch = kColumns * 2 + 16;                            // +16: rows of a matrix store fall into different banks
  static constexpr int kStagingAt = kStages * kRowsBytes;
  static constexpr int kWeightAt = kStagingAt + (kGroups * kBM * kPitch + 127) / 128 * 128;
  static constexpr int kRecordBytes = 32;
  static constexpr int kRecordsAt = kWeightAt + kStages * kWeightBytes;
  static constexpr int kIdsAt = kRecordsAt + Cursor::kRecords * kRecordBytes;
  static constexpr int kListBytes = kGathers ? Cursor::kRecords * kBM * 4 : 0;
  static constexpr int kSourcesAt = kIdsAt + kListBytes, kFactorsAt = kSourcesAt + kListBytes;
  static constexpr int kBarriersAt = kFactorsAt + kListBytes;
  static constexpr int kRolesAt = kBarriersAt + 2 * kStages * 8;
  static constexpr int kSharedBytes = kRolesAt + 16;
  static_assert(kSharedBytes == Config::kSharedBytes, "host and device disagree on shared memory");

  // Register budget: the sum over warpgroups must fit what the launch gave, or setmaxnreg waits for ever.
  static constexpr int kEntryRegisters = 65536 / Config::kCtas / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kEntryRegisters < 128 ? 32 : 40;
  static constexpr int kConsumerRegisters = (kEntryRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;

  // L2 hints of the weights, as in w4a16_mma: evict-first where a tile's weights serve no other tile, except for the first bytes of
  // a long stream, which replace what may be dirty.
  static constexpr int64_t kTileBytes = int64_t(kPanels) * kBlocks * kBlockBytes;
  static constexpr int64_t kLongStream = int64_t(256) << 20, kSweep = int64_t(128) << 20;

  struct Record {
    int row, rows;      // of the output, or the place of the tile's ids; rows = 0 ends the stream
    int width;          // rows of the instruction
    int panel;          // first panel of the tile
    int first, stages;  // of K
    int cut;            // where the tile was cut, -1: whole
    int unused;
  };
  static_assert(sizeof(Record) == kRecordBytes);

  uint8_t* const shared;
  const int warp, lane;

  __device__ __forceinline__ explicit W4A16Wgmma(uint8_t* memory)
      : shared(memory), warp(__shfl_sync(0xffffffffu, thread() / 32, 0)), lane(thread() % 32) {}

  // Read anew by every object: what one part of a tile derives from it must not live in registers through the others.
  __device__ __forceinline__ static int thread() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
  }

  __device__ __forceinline__ uint64_t* full(int stage) const { return reinterpret_cast<uint64_t*>(shared + kBarriersAt) + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(kStages + stage); }
  __device__ __forceinline__ Record& record(const Cursor& cursor) const { return reinterpret_cast<Record*>(shared + kRecordsAt)[cursor.record]; }
  __device__ __forceinline__ int* ids() const { return reinterpret_cast<int*>(shared + kIdsAt); }
  __device__ __forceinline__ int* sources() const { return reinterpret_cast<int*>(shared + kSourcesAt); }
  __device__ __forceinline__ float* factors() const { return reinterpret_cast<float*>(shared + kFactorsAt); }

  // Read where they are used: a value alive on both sides of the role branch would be spilled by the small producer.
  __device__ __forceinline__ static int cta() {
    int index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
  }

  __device__ __forceinline__ static int rank() { return kShare > 1 ? static_cast<int>(cute::block_rank_in_cluster()) : 0; }

  // A stage is free again when the warps of all CTAs that its rows went to are done with it.
  __device__ __forceinline__ void release(int stage) const {
    Barrier::arrive(empty(stage));  // all lanes: racecheck follows no other form
    if (kShare > 1 && lane == 0) Barrier::arrive(empty(stage), rank() ^ 1, true);
  }

  // ---------------------------------------------------------------- producer
  __device__ __forceinline__ void produce(const Params& p) {
    Rows rows(p.rows, lane);
    const int tiles = rows.total * kTilesN;
    const int workers = gridDim.x / kShare;
    const KPieces pieces(tiles, workers, kTileStages, Config::kCuts);
    const int swept = tiles * kTileBytes > kLongStream ? static_cast<int>(kSweep / kTileBytes) : 0;
    Cursor cursor;
    int ticket = cta() / kShare;
#pragma unroll 1
    while (ticket < pieces.tickets()) {
      // One fetch a ticket makes `tickets` fetches a launch: the wrap leaves zero behind for the next one.
      // A cluster's CTAs must agree without a word, so they deal tiles round robin.
      int next = ticket + workers;
      if (kShare == 1 && lane == 0) next = workers + atomicInc(p.ticket, pieces.tickets() - 1);
      const int piece = ticket - pieces.whole;
      int stage = piece < 0 ? 0 : pieces.begin(piece);
      const int end = piece < 0 ? kTileStages : pieces.begin(piece + 1);
#pragma unroll 1
      while (stage < end) {
        const int within = piece < 0 ? 0 : stage / kTileStages;
        const int first = stage - within * kTileStages, last = min(kTileStages, first + end - stage);
        const int cut = first > 0 ? piece : last < kTileStages ? piece + 1 : -1;
        part(p, rows, cursor, piece < 0 ? ticket : pieces.whole + within, first, last, cut, ticket < swept);
        stage += last - first;
      }
      ticket = __shfl_sync(0xffffffffu, next, 0);
    }
    wait(empty(cursor.stage), cursor.phase ^ 1);
    if (lane == 0) record(cursor).rows = 0;
    publish();
    if (lane == 0) Barrier::arrive(full(cursor.stage));
    if constexpr (kGathers) Barrier::arrive(full(cursor.stage));
  }

  // Stages [first, last) of a tile.
  __device__ __forceinline__ void part(const Params& p, Rows& walk, Cursor& cursor, int tile, int first, int last, int cut, bool sweeps) {
    const auto group = walk.at(tile / kTilesN);
    const int place = tile - group.before * kTilesN;
    const int panel_tile = place / group.tiles, row_tile = place - panel_tile * group.tiles;
    // Rows are spread evenly over the expert's tiles, so that all of them take narrow instructions.
    const int height = Widths::of((group.rows + group.tiles - 1) / group.tiles);
    const int row = group.first + row_tile * height;
    const auto taken = take(p, walk, group, row, min(height, group.rows - row_tile * height));
    if (taken.count == 0) return;
    const int width = Widths::of(taken.count);
    const int panel = (panel_tile * kShare + rank()) * kPanels;
    const uint8_t* weight = p.weight + (int64_t(group.expert) * kRowPanels + panel) * kBlocks * kBlockBytes;
    const uint64_t hint = alone(walk, group) && !sweeps ? kEvictFirst : kEvictNormal;
    wait(empty(cursor.stage), cursor.phase ^ 1);
    int source = row;
    if constexpr (kGathers) {
      source = cursor.record * kBM;
      taken.leave(ids() + source, sources() + source, factors() + source, p.rows.top_k, p.activations.row_weights,
                  Config::kSwiglu ? 1.0f : Decode::kSumScale, lane);
    }
    if (lane == 0) {
      Record& next = record(cursor);
      next.row = source, next.rows = taken.count, next.width = width;
      next.panel = panel, next.first = first, next.stages = last - first, next.cut = cut;
    }
    publish();
    if constexpr (kGathers) {
      gather(p, cursor, record(cursor), [&](int k) { fill(cursor.stage, k, 0, weight, hint); });
    } else {
#pragma unroll 1
      for (int k = first; k < last; ++k) {
        wait(empty(cursor.stage), cursor.phase ^ 1);
        if (cute::elect_one_sync()) {
          fill(cursor.stage, k, (width + kBoxRows - 1) / kBoxRows, weight, hint);
          fill_rows(p, cursor.stage, k, row, width);
        }
        cursor.advance();
      }
    }
    cursor.next_record();
  }

  struct Run {
    int count;
  };

  // The rows from `row` on that the group's expert owns, `most` at most.
  __device__ __forceinline__ auto take(const Params& p, const Rows& walk, const typename Rows::Group& group, int row, int most) const {
    if constexpr (kGathers)
      return walk.take(group);
    else
      return Run{Rows::Source::owned(p.rows, group.expert, row, most, lane)};
  }

  static __device__ __forceinline__ bool alone(const Rows& walk, const typename Rows::Group& group) {
    if constexpr (kGathers)
      return walk.alone(group.before);
    else
      return group.tiles == 1;
  }

  // What the first lane wrote for others: the elected lane, which arrives for it, may be another, and so may the gathering warps.
  __device__ __forceinline__ void publish() const {
    if constexpr (kGathers)
      cutlass::arch::NamedBarrier::sync(128, 1 + kGroups);
    else
      __syncwarp();
  }

  // Packed blocks of a stage, which also gets `boxes` boxes of rows.
  __device__ __forceinline__ void fill(int stage, int k, int boxes, const uint8_t* weight, uint64_t hint) {
    Barrier::arrive_and_expect_tx(full(stage), kWeightBytes + boxes * kBoxRows * 128 * kStageBlocks);
    uint8_t* blocks = shared + kWeightAt + stage * kWeightBytes;
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
      bulk_copy(blocks + i * kStageBlocks * kBlockBytes, weight + (int64_t(i) * kBlocks + k * kStageBlocks) * kBlockBytes,
                kStageBlocks * kBlockBytes, full(stage), hint);
  }

  __device__ __forceinline__ void fill_rows(const Params& p, int stage, int k, int row, int width) {
    const int boxes = (width + kBoxRows - 1) / kBoxRows;
    uint8_t* tile = shared + stage * kRowsBytes;
#pragma unroll
    for (int block = 0; block < kStageBlocks; ++block)
      for (int box = rank(); box < boxes; box += kShare) {
        uint8_t* lines = tile + block * kBM * 128 + box * kBoxRows * 128;
        const int column = (k * kStageBlocks + block) * 64, first = row + box * kBoxRows;
        if constexpr (kShare > 1)
          cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&p.activations.x, full(stage), (1 << kShare) - 1, kEvictLast, lines, column, first);
        else
          cute::SM90_TMA_LOAD_2D::copy(&p.activations.x, full(stage), kEvictLast, lines, column, first);
      }
  }

  // A gathering warp's share of a tile; `fill` adds the packed blocks of a stage in the one warp that has them to add.
  template <class Fill>
  __device__ __forceinline__ void gather(const Params& p, Cursor& cursor, const Record& tile, Fill&& fill) const {
    const RowGather<kBM, Config::kK, 128> rows(sources() + tile.row, tile.rows, thread() - kGroups * 128);
    const int last = tile.first + tile.stages;
#pragma unroll 1
    for (int k = tile.first; k < last; ++k) {
      wait(empty(cursor.stage), cursor.phase ^ 1);
      if (warp == kGroups * 4 && cute::elect_one_sync()) fill(k);
      rows.template copy<kStageBlocks>(p.activations.x, k * kStageBlocks, shared_address(shared + cursor.stage * kRowsBytes));
      arrive_when_copied(full(cursor.stage));
      cursor.advance();
    }
  }

  // The other warps of a gathering producer.
  __device__ __forceinline__ void assist(const Params& p) {
    Cursor cursor;
    while (true) {
      publish();
      const Record& tile = record(cursor);
      if (tile.rows == 0) break;
      gather(p, cursor, tile, [](int) {});
      cursor.next_record();
    }
    Barrier::arrive(full(cursor.stage));
  }

  // ---------------------------------------------------------------- consumers
  __device__ __forceinline__ void consume(const Params& p) {
    Cursor cursor;
    while (true) {
      wait_filled(cursor);
      const Record& tile = record(cursor);
      if (tile.rows == 0) break;
      W4A16Wgmma(shared).multiply(p, cursor, tile);
      cursor.next_record();
    }
  }

  // Gathered rows were written through the generic proxy, WGMMA reads through the asynchronous one.
  __device__ __forceinline__ void wait_filled(const Cursor& cursor) const {
    wait(full(cursor.stage), cursor.phase);
    if constexpr (kGathers) cutlass::arch::fence_view_async_shared();
  }

  __device__ __forceinline__ int group() const { return warp / 4; }

  using Codes = UnitCodes<kUnitBlocks>;
  using Sums = float[kUnitBlocks][kBM / 2];

  __device__ __forceinline__ int first_unit() const { return kUnitBlocks == 2 ? warp % 4 : warp % 8; }
  __device__ __forceinline__ int panel_of_group() const { return kUnitBlocks == 2 ? warp / 4 : warp / 8; }

  __device__ __forceinline__ void multiply(const Params& p, Cursor& cursor, const Record& tile) {
    Sums sums = {};
    accumulate<0>(sums, cursor, tile);
    if (tile.cut >= 0 && !WgmmaEnd<W4A16Wgmma>(shared).join(p, sums, tile)) return;
    WgmmaEnd<W4A16Wgmma>(shared).store(p, sums, tile);
  }

  // The tile in the narrowest instruction that holds its rows. All widths share the registers of the widest: sums of their own
  // would be given registers side by side.
  template <int kIndex>
  __device__ __forceinline__ void accumulate(Sums& sums, Cursor& cursor, const Record& tile) const {
    constexpr int kWidth = Widths::at(kIndex);
    if constexpr (kWidth < kBM) {
      if (tile.width != kWidth) return accumulate<kIndex + 1>(sums, cursor, tile);
    }
    // k16 steps of a group of products: few where the sums leave no room for fragments.
    constexpr int kSteps = kUnitBlocks * kWidth > 256 ? 1 : Config::kGroupSteps;
    constexpr int kRounds = 4 / kSteps;  // groups of a 64-k block
    static_assert(kRounds * kStageBlocks % 2 == 0, "a stage must leave the two fragment buffers as it found them");
    Fragment fragments[2][kSteps][kUnitBlocks];
    Codes codes;
    const int unit = first_unit();
    const uint32_t blocks = shared_address(shared + kWeightAt) + panel_of_group() * kStageBlocks * kBlockBytes + Codes::offset(unit, lane);
    const uint32_t rows = wgmma_descriptor(shared_address(shared));
    const int stages = tile.stages;
    int last_stage = 0;
    codes.load(blocks + cursor.stage * kWeightBytes, unit, lane);
    codes.template decode<kSteps>(fragments[0], 0);
#pragma unroll 1
    for (int k = 0; k < stages; ++k) {
      const int stage = cursor.stage;
      cursor.advance();
      const uint32_t tile_rows = __shfl_sync(0xffffffffu, rows + stage * (kRowsBytes / 16), 0);
#pragma unroll
      for (int block = 0; block < kStageBlocks; ++block) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          const int now = (block * kRounds + round) % 2;
          auto fetch = [&] {
            if (block + 1 < kStageBlocks) {
              codes.load(blocks + stage * kWeightBytes + (block + 1) * kBlockBytes, unit, lane);
            } else if (k + 1 < stages) {
              wait_filled(cursor);
              codes.load(blocks + cursor.stage * kWeightBytes, unit, lane);
            }
          };
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int m = 0; m < kUnitBlocks; ++m)
              Wgmma<kWidth>::multiply(sums[m], fragments[now][step][m], tile_rows + block * kBM * 8 + (round * kSteps + step) * 2);
          wgmma_commit();
          if (kRounds == 1) fetch();
          wgmma_wait<1>();
          if (block == 0 && round == 0 && k > 0) release(last_stage);
          codes.template decode<kSteps>(fragments[now ^ 1], (round + 1) % kRounds * kSteps);
          if (kRounds > 1 && round == kRounds - 2) fetch();
        }
      }
      last_stage = stage;
    }
    wgmma_wait<0>();
    release(last_stage);
  }

  // ---------------------------------------------------------------- whole kernel
  __device__ __forceinline__ void run(const Params& p) {
    if (thread() == 0) {
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(full(i), kGathers ? 1 + 128 : 1);
        Barrier::init(empty(i), kGroups * 128 + (kShare > 1 ? kGroups * 4 : 0));
      }
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (kShare > 1)
      cute::cluster_sync();
    else
      __syncthreads();
    if (warp >= kGroups * 4) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (warp == kGroups * 4)
        produce(p);
      else if constexpr (kGathers)
        assist(p);
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(p);
    }
    if constexpr (kShare > 1) {
      __syncwarp();
      cute::cluster_sync();  // no CTA leaves while another still writes or arrives in its shared memory
    }
  }
};

}  // namespace chord
