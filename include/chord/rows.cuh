// Row sources: which activation rows a tile reads and which output rows it writes.
//
// IndexedRows follows vLLM's routing. `sorted_ids` holds blocks of `block_m` ids, each a prefix of valid ids (< routed
// rows) and then sentinels; a tile takes one sub-block of kBM ids. Both arrays may end in uninitialised memory: nothing
// past `padded` is trusted, and no index past the arrays' lengths is read. A block whose expert is not in [0, experts)
// belongs to another rank and is left out.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

enum class RowSource { kIndexed, kMasked, kOffsets, kBlocks };

struct IndexedParams {
  const int* sorted_ids;
  const int* expert_ids;
  const int* padded;
  int id_capacity;
  int block_capacity;
  int routed_rows;
  int top_k;
  int experts;
  int sub_blocks;  // block_m / kBM
};

// Every source has this shape. `Early` is what the producer's warp reads before the CTA has set itself up; `at` is called with
// rising numbers of token tiles and may run ahead of `count`.
template <int kBM>
struct IndexedRows {
  using Params = IndexedParams;

  // One lane's view of a tile's rows; `expert` is the same in all lanes.
  struct Tile {
    int id;
    int expert;
  };

  struct Early {
    Tile whole, half;  // the first tile, if the first ticket takes a whole one or a half
    int padded;
  };

  const IndexedParams& p;
  const int lane;
  const Early early;

  __device__ __forceinline__ IndexedRows(const IndexedParams& params, int lane_index, const Early& read)
      : p(params), lane(lane_index), early(read) {}

  static __device__ __forceinline__ Early read_early(const IndexedParams& p, int lane, int first, int first_half) {
    return {load(p, first, lane), load(p, first_half, lane), *p.padded};
  }

  // Sub-blocks in use.
  __device__ __forceinline__ int count() const {
    const int blocks = min(early.padded / (kBM * p.sub_blocks), p.block_capacity);
    return max(blocks, 0) * p.sub_blocks;
  }

  __device__ __forceinline__ Tile first(bool halves, int) const { return halves ? early.half : early.whole; }
  __device__ __forceinline__ Tile at(int sub_block) const { return load(p, sub_block, lane); }

  // Stays inside the arrays for any sub-block.
  static __device__ __forceinline__ Tile load(const IndexedParams& p, int sub_block, int lane) {
    const int block = p.sub_blocks == 1 ? sub_block : sub_block / p.sub_blocks;
    const int64_t index = int64_t(sub_block) * kBM + lane;
    Tile tile;
    tile.id = lane < kBM && index < p.id_capacity ? p.sorted_ids[index] : -1;
    tile.expert = block < p.block_capacity ? p.expert_ids[block] : -1;
    return tile;
  }

  // Rows of the tile, zero when the whole block is to be left out.
  __device__ __forceinline__ int rows(const Tile& tile) const {
    const bool valid = static_cast<unsigned>(tile.id) < static_cast<unsigned>(p.routed_rows);
    // The leading run of valid ids: an id after a sentinel breaks the contract and must not be followed.
    const int rows = __clz(__brev(~__ballot_sync(0xffffffffu, valid)));
    return static_cast<unsigned>(tile.expert) < static_cast<unsigned>(p.experts) ? rows : 0;
  }

  __device__ __forceinline__ int source_row(int id) const { return p.top_k == 1 ? id : id / p.top_k; }
};

}  // namespace chord
