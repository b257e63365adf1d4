// Row sources: which activation rows a tile reads and which output rows it writes.
//
// IndexedRows follows vLLM's routing. `sorted_ids` holds blocks of `block_m` ids, each a prefix of valid ids (< routed
// rows) and then sentinels; a tile takes one sub-block of kBM ids. Both arrays may end in uninitialised memory: nothing
// past `padded` is trusted, and no index past the arrays' lengths is read. A block whose expert is not in [0, experts)
// belongs to another rank and is left out.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

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

template <int kBM>
struct IndexedRows {
  // One lane's view of a tile's rows; `expert` is the same in all lanes.
  struct Tile {
    int id;
    int expert;
  };

  // Sub-blocks in use, of `padded` read from device memory.
  static __device__ __forceinline__ int count(const IndexedParams& p, int padded) {
    const int blocks = min(padded / (kBM * p.sub_blocks), p.block_capacity);
    return max(blocks, 0) * p.sub_blocks;
  }

  // May run ahead of `count`: it stays inside the arrays for any sub-block.
  static __device__ __forceinline__ Tile load(const IndexedParams& p, int sub_block, int lane) {
    const int block = p.sub_blocks == 1 ? sub_block : sub_block / p.sub_blocks;
    const int64_t index = int64_t(sub_block) * kBM + lane;
    Tile tile;
    tile.id = lane < kBM && index < p.id_capacity ? p.sorted_ids[index] : -1;
    tile.expert = block < p.block_capacity ? p.expert_ids[block] : -1;
    return tile;
  }

  // Rows of the tile, zero when the whole block is to be left out.
  static __device__ __forceinline__ int rows(const IndexedParams& p, const Tile& tile) {
    const bool valid = static_cast<unsigned>(tile.id) < static_cast<unsigned>(p.routed_rows);
    // The leading run of valid ids: an id after a sentinel breaks the contract and must not be followed.
    const int rows = __clz(__brev(~__ballot_sync(0xffffffffu, valid)));
    return static_cast<unsigned>(tile.expert) < static_cast<unsigned>(p.experts) ? rows : 0;
  }

  static __device__ __forceinline__ int source_row(const IndexedParams& p, int id) { return p.top_k == 1 ? id : id / p.top_k; }
};

}  // namespace chord
