// Row sources of the grouped family: which consecutive activation rows belong to which expert, read from device memory.
//
//   kMasked   `layout` int32 [experts]: expert e owns rows [e * max_m, e * max_m + layout[e]).
//   kOffsets  `layout` int64 [experts + 1]: expert e owns rows [layout[e], layout[e + 1]).
//   kBlocks   `layout` int32 [rows], rows in blocks of 128 of one expert each: its id, or -1 on padding behind its rows.
//
// A warp walks the segments (experts, or blocks of 128 rows) 32 at a time, one a lane, and finds the token tile of any
// number that it is asked for in rising order; nothing is built in memory. Values out of range are clamped: broken
// metadata gives wrong rows, never an access outside the tensors.
#pragma once

#include "chord/rows.cuh"

namespace chord {

struct GroupedParams {
  const void* layout;
  int segments;
  int rows;  // of the activations
  int max_m;
  int experts;
};

struct Segment {
  int expert;
  int first;
  int rows;   // kBlocks: rows that the segment may hold; how many it does is counted when a tile is taken
  int tiles;  // token tiles
};

template <RowSource kSource, int kBM>
struct Segments {
  static constexpr int kBlockRows = 128;
  static_assert(kSource != RowSource::kBlocks || kBlockRows % kBM == 0 || kBM == 2 * kBlockRows, "a tile must not cut a block of rows");

  // Segment `index` of a warp's 32; `run` carries over from one call to the next and starts at zero.
  static __device__ __forceinline__ Segment load(const GroupedParams& p, int index, int lane, int& run) {
    Segment found = {0, 0, 0, 0};
    if constexpr (kSource == RowSource::kBlocks) {
      const int* owners = static_cast<const int*>(p.layout);
      const bool inside = index < p.segments;
      found.first = index * kBlockRows;
      found.expert = inside ? owners[found.first] : -1;
      const bool used = static_cast<unsigned>(found.expert) < static_cast<unsigned>(p.experts);
      if constexpr (kBM <= kBlockRows) {
        found.rows = used ? kBlockRows : 0;
        found.tiles = used ? kBlockRows / kBM : 0;
      } else {
        // Two blocks a tile: the even ones of a run of blocks of one expert take their successor along.
        const bool starts = !inside || index == 0 || owners[found.first - kBlockRows] != found.expert;
        const bool goes_on = index + 1 < p.segments && owners[found.first + kBlockRows] == found.expert;
        const unsigned begins = __ballot_sync(0xffffffffu, starts);
        const unsigned before = begins & (0xffffffffu >> (31 - lane));
        const int place = before ? lane - (31 - __clz(before)) : run + lane;
        found.tiles = used && place % 2 == 0;
        found.rows = goes_on ? 2 * kBlockRows : kBlockRows;
        run = __shfl_sync(0xffffffffu, place, 31) + 1;
      }
    } else if (index < p.segments) {
      found.expert = index;
      if constexpr (kSource == RowSource::kMasked) {
        found.first = index * p.max_m;
        found.rows = min(max(static_cast<const int*>(p.layout)[index], 0), min(p.max_m, p.rows - found.first));
      } else {
        const int64_t* offsets = static_cast<const int64_t*>(p.layout);
        const int64_t begin = min(max(offsets[index], int64_t(0)), int64_t(p.rows));
        found.first = static_cast<int>(begin);
        found.rows = static_cast<int>(min(max(offsets[index + 1], begin), int64_t(p.rows)) - begin);
      }
      found.tiles = (found.rows + kBM - 1) / kBM;
    }
    return found;
  }

  // Rows of a tile that starts at `first` and may hold `most`: the leading run of rows that the expert really owns.
  static __device__ __forceinline__ int owned(const GroupedParams& p, int expert, int first, int most, int lane) {
    if constexpr (kSource != RowSource::kBlocks) return most;
    const int* owners = static_cast<const int*>(p.layout) + first;
    int rows = 0;
#pragma unroll 1
    for (int base = 0; base < most; base += 32) {
      const unsigned mine = __ballot_sync(0xffffffffu, base + lane < most && owners[base + lane] == expert);
      const int run = __ffs(~mine) - 1;
      rows += mine == 0xffffffffu ? 32 : run;
      if (mine != 0xffffffffu) break;
    }
    return rows;
  }
};

// One warp's place among the segments; every lane calls every function.
template <RowSource kSource, int kBM>
struct Walk {
  using Source = Segments<kSource, kBM>;

  struct Group {
    int expert;
    int first;  // row
    int rows;
    int tiles;   // token tiles of the segment
    int before;  // token tiles of all segments ahead of it
  };

  const GroupedParams& p;
  const int lane;
  int chunk = 0, run = 0;  // first segment of the 32 at hand
  int behind = 0;          // token tiles ahead of them
  int upto = 0;            // token tiles ahead of the lane's segment and its own
  Segment mine;
  // Token tiles of all segments. A launch's output fits in memory, so they (and all tiles of a launch) fit in an int.
  int total;

  __device__ __forceinline__ Walk(const GroupedParams& params, int lane_index) : p(params), lane(lane_index) {
    mine = Source::load(p, lane, lane, run);
    int later = 0, carried = run;
#pragma unroll 4
    for (int first = 32; first < p.segments; first += 32) later += Source::load(p, first + lane, lane, carried).tiles;
    add_up();
    total = __shfl_sync(0xffffffffu, upto, 31) + __reduce_add_sync(0xffffffffu, later);
  }

  // The segment of token tile `index`, which exists and is no smaller than in any call before.
  __device__ __forceinline__ Group at(int index) {
    while (true) {
      const unsigned reach = __ballot_sync(0xffffffffu, index < behind + upto);
      if (reach) {
        const int owner = __ffs(reach) - 1;
        return {__shfl_sync(0xffffffffu, mine.expert, owner), __shfl_sync(0xffffffffu, mine.first, owner),
                __shfl_sync(0xffffffffu, mine.rows, owner), __shfl_sync(0xffffffffu, mine.tiles, owner),
                behind + __shfl_sync(0xffffffffu, upto - mine.tiles, owner)};
      }
      behind += __shfl_sync(0xffffffffu, upto, 31);
      chunk += 32;
      mine = Source::load(p, chunk + lane, lane, run);
      add_up();
    }
  }

 private:
  __device__ __forceinline__ void add_up() {
    upto = mine.tiles;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, upto, distance);
      if (lane >= distance) upto += below;
    }
  }
};

// The rows of a token tile by id, as the kernels of few rows take them (rows.cuh): row `id` is read and written.
template <RowSource kSource, int kBM>
struct GroupedRows {
  using Params = GroupedParams;

  struct Tile {
    int id;
    int expert;
    int count;
  };

  struct Early {};

  Walk<kSource, kBM> walk;

  __device__ __forceinline__ GroupedRows(const GroupedParams& params, int lane, const Early&) : walk(params, lane) {}

  static __device__ __forceinline__ Early read_early(const GroupedParams&, int, int, int) { return {}; }

  __device__ __forceinline__ int count() const { return walk.total; }
  __device__ __forceinline__ Tile first(bool, int index) { return at(index); }

  __device__ __forceinline__ Tile at(int index) {
    if (index >= walk.total) return {-1, 0, 0};
    const auto group = walk.at(index);
    const int ahead = (index - group.before) * kBM, row = group.first + ahead;
    const int count = Segments<kSource, kBM>::owned(walk.p, group.expert, row, min(kBM, group.rows - ahead), walk.lane);
    return {row + walk.lane, group.expert, count};
  }

  __device__ __forceinline__ int rows(const Tile& tile) const { return tile.count; }
  __device__ __forceinline__ int source_row(int id) const { return id; }
};

}  // namespace chord
