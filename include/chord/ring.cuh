// A place in a ring of shared-memory stages and in the ring of tile records that goes with it.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

template <int kStages>
struct RingCursor {
  // One tile may be at its end, with all its stages free again, while every stage holds another tile.
  static constexpr int kRecords = kStages + 1;

  int stage = 0;
  uint32_t phase = 0;
  int record = 0;

  __device__ __forceinline__ void next_record() { record = record == kRecords - 1 ? 0 : record + 1; }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace chord
