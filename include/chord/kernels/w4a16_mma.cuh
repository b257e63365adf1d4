// W4A16 with swapped operands on mma.m16n8k16: output features on M, token rows on N. For few rows per expert.
//
// Tile: kBM token rows x kPanels * 128 outputs, K streamed in stages of kStageBlocks * 64.
// Roles: one producer warp (of a warpgroup that gives its registers away) fills a ring of kStages stages by bulk copies:
//   packed weight blocks and the tile's activation rows (evict-last), all counted on one mbarrier.
//   Consumer warps split the stage by K (and by panel), so the fragments of the activations serve a whole 128-row block;
//   partial sums meet in shared memory at the end of a tile.
// Shared memory: [stages: blocks | rows] [reduction] [cluster receive] [records] [barriers] [zero row].
// Tiles: taken from a ticket counter, halves of them in the last wave (split = 1), or, where they are few, dealt round robin to clusters whose CTAs share
//   K (split > 1, sums sent to rank 0 by st.async). A tile's sums have one fixed order: results do not depend on timing.
// Hazards: a row that no id names reads the zero row, never stale shared memory; the K tail is not copied and its half
//   block reads the zero row too; a CTA of a cluster stays until its neighbours are done with its shared memory.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "chord/dequant.cuh"
#include "chord/epilogue.cuh"
#include "chord/grid.cuh"
#include "chord/last_wave.cuh"
#include "chord/mma_params.cuh"
#include "chord/ptx.cuh"
#include "chord/ring.cuh"

namespace chord {

template <class Config>
struct W4A16Mma {
  using Rows = typename RowsOf<Config::kRows, Config::kBM>::Type;
  using Params = W4A16MmaParams<typename Rows::Params>;
  using Decode = Decoder<Config::kDequant>;
  using Cursor = RingCursor<Config::kStages>;

  static constexpr int kBM = Config::kBM, kPanels = Config::kPanels, kStageBlocks = Config::kStageBlocks;
  static constexpr int kStages = Config::kStages, kSplit = Config::kSplit;
  static_assert(kBM == 8 || kBM == 16, "a token tile is one or two n8 tiles");
  static_assert(Config::kK % 32 == 0 && Config::kN % 8 == 0, "padding serves no other shape");

  static constexpr int kTokenTiles = kBM / 8;
  static constexpr int kBlockBytes = 4608, kCodeBytes = 4096;
  static constexpr int kUnits = 8;  // 16-row units of a block
  static constexpr int kWarps = kPanels * kStageBlocks;
  static constexpr int kThreads = (kWarps + 4) * 32;
  static_assert(kThreads == Config::kThreads && kWarps % 4 == 0, "host and device disagree on the warps");

  static constexpr int kBlocks = (Config::kK + 63) / 64;  // k blocks of a panel
  static constexpr int kTileStages = (kBlocks + kStageBlocks - 1) / kStageBlocks;
  static constexpr int kRowPanels = Config::kInterleaved ? (Config::kN / 2 + 63) / 64 : (Config::kN + 127) / 128;
  static constexpr int kTilesN = kRowPanels / kPanels;
  static_assert(kRowPanels % kPanels == 0, "a tile must not reach into the next expert's panels");
  static_assert(kSplit <= kTileStages, "every CTA of a cluster needs a share of K");

  // Halves in the last wave pay where a tile is long; a short one is mostly its two ends.
  static constexpr bool kHalves = kSplit == 1 && kPanels == 1 && kTileStages >= 8;

  // L2 hints of the weights. Evict-first keeps a stream from sweeping L2, but where L2 is full of dirty lines their write-back
  // then drags along the whole launch: a long stream sends its first two L2 sizes through at normal priority instead.
  static constexpr int64_t kTileBytes = int64_t(kPanels) * kBlocks * kBlockBytes;
  static constexpr int64_t kLongStream = int64_t(256) << 20, kSweep = int64_t(128) << 20;

  static constexpr int kRowPitch = kStageBlocks * 128 + 16;  // +16: rows of an ldmatrix fall into different banks
  static constexpr int kWeightBytes = kWarps * kBlockBytes;
  static constexpr int kStageBytes = (kWeightBytes + kBM * kRowPitch + 127) / 128 * 128;
  static constexpr int kPartPitch = kUnits * 16 + 4;  // floats; +4 keeps the accumulator's scattered stores conflict-free
  static constexpr int kReductionBytes = kWarps * 8 * kPartPitch * 4;
  static constexpr int kReceiveBytes = (kSplit - 1) * kBM * kPanels * 512;
  static constexpr int kRecordBytes = 16 + kBM * 4;
  static constexpr int kReductionAt = kStages * kStageBytes;
  static constexpr int kReceiveAt = kReductionAt + kReductionBytes;
  static constexpr int kRecordsAt = kReceiveAt + kReceiveBytes;
  static constexpr int kBarriersAt = (kRecordsAt + Cursor::kRecords * kRecordBytes + 15) / 16 * 16;
  static constexpr int kZeroRowAt = (kBarriersAt + (2 * kStages + 2) * 8 + 15) / 16 * 16;
  static constexpr int kSharedBytes = kZeroRowAt + 128;
  static_assert(kSharedBytes == Config::kSharedBytes, "host and device disagree on shared memory");

  // Register budget: what the launch gives all warps, minus what the producer's warpgroup keeps.
  static constexpr int kEntryRegisters = 65536 / Config::kCtas / kThreads / 8 * 8;
  static constexpr bool kMovesRegisters = kEntryRegisters < 216;
  static constexpr int kProducerRegisters = kSplit > 1 || Config::kRows != RowSource::kIndexed ? 56 : 40;  // a walk or a rank more
  static constexpr int kConsumerRegisters = (kEntryRegisters * kThreads - kProducerRegisters * 128) / (kWarps * 32) / 8 * 8;

  struct Record {
    int panel;  // first panel of the tile; -1 ends the stream
    int rows;
    int unit, units;  // the units of the panel that the tile takes: all, or four
    int ids[kBM];
  };
  static_assert(sizeof(Record) == kRecordBytes);

  uint8_t* const shared;
  const int warp, lane;

  __device__ __forceinline__ explicit W4A16Mma(uint8_t* memory) : shared(memory), warp(thread() / 32), lane(thread() % 32) {}

  // Read anew by every object: what the end of a tile derives from it must not live in registers through the main loop.
  __device__ __forceinline__ static int thread() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
  }

  __device__ __forceinline__ uint64_t* full(int stage) const { return reinterpret_cast<uint64_t*>(shared + kBarriersAt) + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(kStages + stage); }
  __device__ __forceinline__ uint64_t* received() const { return full(2 * kStages); }
  __device__ __forceinline__ uint64_t* may_send() const { return full(2 * kStages + 1); }
  __device__ __forceinline__ uint8_t* stage_memory(int stage) const { return shared + stage * kStageBytes; }
  __device__ __forceinline__ Record& record(const Cursor& cursor) const { return reinterpret_cast<Record*>(shared + kRecordsAt)[cursor.record]; }
  __device__ __forceinline__ uint32_t zero_row() const { return shared_address(shared + kZeroRowAt); }

  __device__ __forceinline__ static int rank() { return kSplit > 1 ? static_cast<int>(cute::block_rank_in_cluster()) : 0; }
  __device__ __forceinline__ static int first_stage(int rank) { return kTileStages * rank / kSplit; }

  // ---------------------------------------------------------------- producer
  __device__ __forceinline__ void produce(const Params& p, const typename Rows::Early& early) {
    Rows source(p.routing, lane, early);
    const int workers = gridDim.x / kSplit;
    int ticket = blockIdx.x / kSplit;
    const LastWave wave(source.count() * kTilesN, workers, kHalves);
    const int swept = wave.tickets * kTileBytes > kLongStream ? static_cast<int>(kSweep / kTileBytes) : 0;
    auto rows = source.first(kHalves && wave.whole == 0, wave.piece(ticket).tile / kTilesN);
    const int begin = first_stage(rank()), end = first_stage(rank() + 1);
    Cursor cursor;
    int ahead = 0;  // stages of the first tile whose weights are on their way
    if (p.routed_before) {
      if (ticket < wave.tickets) ahead = start_early(p, wave.piece(ticket), source.rows(rows), rows, ticket < swept ? kEvictNormal : kEvictFirst);
      wait_for_previous();
    }
    let_next_start();
    while (ticket < wave.tickets) {
      int next = ticket + workers;
      if constexpr (kSplit == 1) {
        // One fetch a ticket makes `tickets` fetches a launch: the wrap leaves zero behind for the next one.
        if (lane == 0) next = workers + atomicInc(p.ticket, wave.tickets - 1);
      }
      const LastWave::Piece piece = wave.piece(ticket);
      const int panel = piece.tile % kTilesN * kPanels;
      const int count = source.rows(rows);
      const int id = rows.id;
      const uint8_t* weight = p.weight + (int64_t(rows.expert) * kRowPanels + panel) * kBlocks * kBlockBytes;
      const __nv_bfloat16* row = p.x + int64_t(source.source_row(id)) * Config::kK;
#pragma unroll 1
      for (int k = begin; k < end; ++k) {
        if (k == end - 1) {
          if constexpr (kSplit == 1) next = __shfl_sync(0xffffffffu, next, 0);
          rows = source.at(wave.piece(next).tile / kTilesN);
        }
        if (count > 0) {
          wait(empty(cursor.stage), cursor.phase ^ 1);
          if (ahead == 0) {
            if (k == begin) announce(record(cursor), panel, piece.half, count, id);
            fill_weights(cursor.stage, k, count, weight, ticket < swept ? kEvictNormal : kEvictFirst);
          } else {
            --ahead;
          }
          fill_rows(cursor.stage, k, count, row);
          cursor.advance();
        }
      }
      if (count > 0) cursor.next_record();
      ticket = next;
    }
    wait(empty(cursor.stage), cursor.phase ^ 1);
    if (lane == 0) {
      record(cursor).panel = -1;
      Barrier::arrive(full(cursor.stage));
    }
  }

  __device__ __forceinline__ void announce(Record& tile, int panel, int half, int count, int id) {
    if (lane < kBM) tile.ids[lane] = id;
    if (lane == 0) {
      tile.panel = panel, tile.rows = count;
      tile.unit = half == 1 ? kUnits / 2 : 0, tile.units = half < 0 ? kUnits : kUnits / 2;
    }
    __syncwarp();
  }

  __device__ __forceinline__ static int depth_of(int k) {
    return Config::kK % (kStageBlocks * 64) == 0 ? kStageBlocks * 64 : min(kStageBlocks * 64, Config::kK - k * kStageBlocks * 64);
  }

  // Weights of a stage, with all that its barrier is to count.
  __device__ __forceinline__ void fill_weights(int stage, int k, int count, const uint8_t* weight, uint64_t hint) {
    const int blocks = kBlocks % kStageBlocks == 0 ? kStageBlocks : min(kStageBlocks, kBlocks - k * kStageBlocks);
    if (lane == 0) {
      Barrier::arrive_and_expect_tx(full(stage), kPanels * blocks * kBlockBytes + count * depth_of(k) * 2);
      for (int i = 0; i < kPanels; ++i)
        bulk_copy(stage_memory(stage) + i * kStageBlocks * kBlockBytes, weight + (int64_t(i) * kBlocks + k * kStageBlocks) * kBlockBytes,
                  blocks * kBlockBytes, full(stage), hint);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void fill_rows(int stage, int k, int count, const __nv_bfloat16* row) {
    if (lane < count)
      bulk_copy(stage_memory(stage) + kWeightBytes + lane * kRowPitch, row + k * kStageBlocks * 64, depth_of(k) * 2, full(stage), kEvictLast);
  }

  // Weights of the first tile's first stages, as many as the ring has: no launch writes them. Returns how many.
  __device__ __forceinline__ int start_early(const Params& p, const LastWave::Piece& piece, int count, const typename Rows::Tile& rows,
                                             uint64_t hint) {
    if (count == 0) return 0;
    const int panel = piece.tile % kTilesN * kPanels, begin = first_stage(rank());
    const uint8_t* weight = p.weight + (int64_t(rows.expert) * kRowPanels + panel) * kBlocks * kBlockBytes;
    const int stages = min(first_stage(rank() + 1) - begin, kStages);
    announce(record(Cursor()), panel, piece.half, count, rows.id);
    for (int i = 0; i < stages; ++i) fill_weights(i, begin + i, count, weight, hint);
    return stages;
  }

  // ---------------------------------------------------------------- consumers
  __device__ __forceinline__ void consume(const Params& p) {
    Cursor cursor;
    uint32_t exchange = 0;
    while (true) {
      wait(full(cursor.stage), cursor.phase);
      const Record& tile = record(cursor);
      if (tile.panel < 0) break;
      if constexpr (kTokenTiles > 1) {
        if (tile.rows > 8)
          multiply<kTokenTiles>(p, cursor, exchange, tile);
        else
          multiply<1>(p, cursor, exchange, tile);
      } else {
        multiply<1>(p, cursor, exchange, tile);
      }
      cursor.next_record();
    }
    if (kSplit > 1 && exchange == 0) cute::cluster_wait();
  }

  template <int kTiles>
  __device__ __forceinline__ void multiply(const Params& p, Cursor& cursor, uint32_t& exchange, const Record& tile) {
    float sum[kTiles][kUnits][4] = {};
    const int block = warp % kStageBlocks;
    const int first_unit = kHalves ? tile.unit : 0;
    const bool whole = !kHalves || tile.units == kUnits;
    const uint32_t weight_at = warp * kBlockBytes + first_unit * 512 + lane * 16;
    const uint32_t scale_at = warp * kBlockBytes + kCodeBytes + first_unit * 64 + lane / 4 * 16;
    const uint32_t rows_at = kWeightBytes + lane % 8 * kRowPitch + block * 128 + lane / 8 * 16;
    const int rows = tile.rows, end = first_stage(rank() + 1);
    for (int k = first_stage(rank()); k < end; ++k) {
      wait(full(cursor.stage), cursor.phase);
      if (kBlocks % kStageBlocks == 0 || k * kStageBlocks + block < kBlocks) {
        const uint32_t memory = shared_address(stage_memory(cursor.stage));
        const bool half_block = Config::kK % 64 != 0 && k * kStageBlocks + block == kBlocks - 1;
        uint32_t b[kTiles][2][4];
        float start[kTiles][2][4];
        load_rows<kTiles>(b, start, memory + rows_at, rows, half_block);
#pragma unroll
        for (int unit = 0; unit < kUnits; unit += 2) {
          if (unit >= kUnits / 2 && !whole) break;
          const uint4 scales = load_shared_128(memory + scale_at + unit * 64);
          const uint4 even = load_shared_128(memory + weight_at + unit * 512);
          const uint4 odd = load_shared_128(memory + weight_at + unit * 512 + 512);
          multiply_unit<kTiles>(sum, unit, even, scales.x, scales.y, b, start);
          multiply_unit<kTiles>(sum, unit + 1, odd, scales.z, scales.w, b, start);
        }
      }
      Barrier::arrive(empty(cursor.stage));  // all lanes: compute-sanitizer follows no arrival on behalf of others
      cursor.advance();
    }
    W4A16Mma(shared).finish<kTiles>(p, sum, exchange, tile);
  }

  // Fragments and start values of the activations, shared by every unit of the block.
  template <int kTiles>
  __device__ __forceinline__ void load_rows(uint32_t (&b)[kTiles][2][4], float (&start)[kTiles][2][4], uint32_t address, int rows, bool half_block) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const bool named = lane % 8 + t * 8 < rows;
      const uint32_t low = named ? address + t * 8 * kRowPitch : zero_row();
      const uint32_t high = Config::kK % 64 != 0 && half_block ? zero_row() : low + 64;
      load_matrices(b[t][0], low);
      load_matrices(b[t][1], high);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        Decode::prepare(b[t][group]);
        if constexpr (Decode::kFoldsZeroPoint) Decode::start(start[t][group], b[t][group]);
      }
  }

  __device__ __forceinline__ static void load_matrices(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address));
  }

  template <int kTiles>
  __device__ __forceinline__ static void multiply_unit(float (&sum)[kTiles][kUnits][4], int unit, const uint4& codes, uint32_t scale0, uint32_t scale1,
                                                       const uint32_t (&b)[kTiles][2][4], const float (&start)[kTiles][2][4]) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w}, scales[2] = {scale0, scale1};
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      Fragment a0, a1;
      if constexpr (Decode::kFoldsZeroPoint) {
        Decode::decode(a0, words[2 * group]);
        Decode::decode(a1, words[2 * group + 1]);
        const float row = __uint_as_float(scales[group] << 16), row8 = __uint_as_float(scales[group] & 0xffff0000u);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float d[4];
          mma(d, a0, b[t][group][0], b[t][group][1], start[t][group]);
          mma(d, a1, b[t][group][2], b[t][group][3], d);
          sum[t][unit][0] = fmaf(row, d[0], sum[t][unit][0]);
          sum[t][unit][1] = fmaf(row, d[1], sum[t][unit][1]);
          sum[t][unit][2] = fmaf(row8, d[2], sum[t][unit][2]);
          sum[t][unit][3] = fmaf(row8, d[3], sum[t][unit][3]);
        }
      } else {
        const auto scale = FusedDecoder::scales(scales[group]);
        FusedDecoder::decode(a0, words[2 * group], scale);
        FusedDecoder::decode(a1, words[2 * group + 1], scale);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma(sum[t][unit], a0, b[t][group][0], b[t][group][1], sum[t][unit]);
          mma(sum[t][unit], a1, b[t][group][2], b[t][group][3], sum[t][unit]);
        }
      }
    }
  }

  // ---------------------------------------------------------------- end of a tile
  // Partial sums of the warps meet in shared memory, one n8 tile at a time; each warp then owns whole token rows.
  template <int kTiles>
  __device__ __forceinline__ void finish(const Params& p, const float (&sum)[kTiles][kUnits][4], uint32_t& exchange, const Record& tile) {
    float* parts = reinterpret_cast<float*>(shared + kReductionAt);
    float weight = 1.0f;
    if constexpr (Config::kWeighted) weight = lane < tile.rows ? p.row_weights[tile.ids[lane]] : 0.0f;
    if constexpr (kSplit > 1) open_exchange(exchange, tile.rows);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float* mine = parts + warp * 8 * kPartPitch + lane % 4 * 2 * kPartPitch + lane / 4;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        mine[unit * 16] = sum[t][unit][0];
        mine[kPartPitch + unit * 16] = sum[t][unit][1];
        mine[unit * 16 + 8] = sum[t][unit][2];
        mine[kPartPitch + unit * 16 + 8] = sum[t][unit][3];
      }
      consumers_sync();
#pragma unroll
      for (int i = 0; i < 8 * kPanels / kWarps; ++i) {
        const int item = i * kWarps + warp, row = t * 8 + item % 8, panel = item / 8;
        if (row < tile.rows) {
          const float row_weight = Config::kWeighted ? __shfl_sync(0xffffffffu, weight, row) : 1.0f;
          float4 value = add_parts(parts, item % 8, panel);
          const bool mine = kSplit > 1 ? exchange_parts(value, row, panel, exchange) : lane / 4 < tile.units;
          if (mine)
            Epilogue<Config>::store(p.out, value, Decode::kSumScale, row_weight, tile.ids[row], tile.panel + panel, tile.unit + lane / 4, lane % 4);
        }
      }
      if (t + 1 < kTiles || !kRingOrdersTiles) consumers_sync();
    }
    if constexpr (kSplit > 1) close_exchange(exchange);
  }

  __device__ __forceinline__ static void consumers_sync() { cutlass::arch::NamedBarrier::sync(kWarps * 32, 1); }

  // No warp can be through its next tile while another still reads this one's parts: the ring has fewer stages than a tile,
  // so its refill waits for the slowest warp.
  static constexpr bool kRingOrdersTiles = kSplit == 1 && kTileStages > kStages;

  __device__ __forceinline__ float4 add_parts(const float* parts, int token, int panel) const {
    using Lanes = typename Epilogue<Config>::Lanes;
    const float* first = parts + (panel * kStageBlocks * 8 + token) * kPartPitch + lane / 4 * 16;
    float4 value = Lanes::read(first, lane % 4);
#pragma unroll
    for (int v = 1; v < kStageBlocks; ++v) value = add(value, Lanes::read(first + v * 8 * kPartPitch, lane % 4));
    return value;
  }

  // ---------------------------------------------------------------- split over K: ranks 1.. send, rank 0 adds in rank order
  __device__ __forceinline__ void open_exchange(uint32_t exchange, int rows) {
    if (exchange == 0) cute::cluster_wait();  // the neighbours have set up their barriers
    if (rank() == 0) {
      if (warp == 0 && lane == 0) Barrier::arrive_and_expect_tx(received(), (kSplit - 1) * rows * kPanels * 512);
    } else {
      wait(may_send(), (exchange & 1) ^ 1);
    }
  }

  // Returns whether this CTA stores the row.
  __device__ __forceinline__ bool exchange_parts(float4& value, int row, int tile_panel, uint32_t exchange) {
    const int at = (row * kPanels + tile_panel) * 512 + lane * 16;
    constexpr int kRankBytes = kBM * kPanels * 512;
    if (rank() > 0) {
      const uint32_t mine = shared_address(shared + kReceiveAt) + (rank() - 1) * kRankBytes + at;
      store_remote_128(cute::set_block_rank(mine, 0), value, cute::set_block_rank(shared_address(received()), 0));
      return false;
    }
    wait(received(), exchange & 1);
#pragma unroll
    for (int other = 0; other < kSplit - 1; ++other)
      value = add(value, *reinterpret_cast<const float4*>(shared + kReceiveAt + other * kRankBytes + at));
    return true;
  }

  __device__ __forceinline__ void close_exchange(uint32_t& exchange) {
    if (rank() == 0) {
      // Warps that had no row to store must not free the buffer ahead of the others: the last sync of `finish` orders them.
      if (warp == 0 && lane > 0 && lane < kSplit) Barrier::arrive(may_send(), lane, true);
    }
    ++exchange;
  }

  // ---------------------------------------------------------------- whole kernel
  __device__ __forceinline__ void run(const Params& p) {
    typename Rows::Early early = {};
    const int ticket = blockIdx.x / kSplit;
    if (warp == kWarps) {
      if (!p.routed_before) wait_for_previous();
      early = Rows::read_early(p.routing, lane, ticket / kTilesN, ticket / 2 / kTilesN);
    }
    if (warp == 0) *reinterpret_cast<int*>(shared + kZeroRowAt + lane * 4) = 0;
    if (warp == kWarps + 1 && lane == 0) {
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(full(i), 1);
        Barrier::init(empty(i), kWarps * 32);
      }
      Barrier::init(received(), 1);
      Barrier::init(may_send(), 1);
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    if constexpr (kSplit > 1) cute::cluster_arrive_relaxed();
    if (warp >= kWarps) {
      if constexpr (kMovesRegisters) cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (warp == kWarps) produce(p, early);
      __syncwarp();
      if constexpr (kSplit > 1) cute::cluster_wait();
    } else {
      if constexpr (kMovesRegisters) cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(p);
    }
    if constexpr (kSplit > 1) cute::cluster_sync();
  }
};

}  // namespace chord
