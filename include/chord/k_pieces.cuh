// The last waves of a persistent grid, cut along K, and how two CTAs join the halves of a tile.
//
// Tiles of whole waves are taken whole. What is left, more than one wave and less than two, is laid end to end along K and
// cut into one piece a CTA; a piece is at least as long as a tile, so a tile is cut at most once. Of the two CTAs at a cut the
// first to arrive leaves its sums in memory, the other adds them to its own: a + b = b + a, so the result does not depend on
// who comes first. The second waits only for a CTA that is running and on its way to store, never for one that may not be resident.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

struct KPieces {
  int whole;   // tiles taken whole
  int pieces;  // of the rest; 0 or the number of CTAs
  int stages;  // of all pieces

  __device__ __forceinline__ KPieces(int tiles, int workers, int tile_stages, bool cuts) : whole(tiles), pieces(0), stages(0) {
    if (!cuts || tiles < workers || tiles % workers == 0) return;
    whole = (tiles / workers - 1) * workers;
    pieces = workers;
    stages = (tiles - whole) * tile_stages;
  }

  __device__ __forceinline__ int tickets() const { return whole + pieces; }
  // First stage of piece `index`; the first one of the next piece ends it.
  __device__ __forceinline__ int begin(int index) const { return static_cast<int>(int64_t(stages) * index / pieces); }
};

// Two bits for each cut of a launch and each warpgroup, 16 of them a word: somebody has arrived; its sums lie in memory. Zero
// before and after.
struct Joint {
  unsigned* word;
  unsigned arrived;

  __device__ __forceinline__ Joint(unsigned* words, int index) : word(words + index / 16), arrived(1u << (index % 16 * 2)) {}

  // True for the first to come.
  __device__ __forceinline__ bool first() const { return !(atomicOr(word, arrived) & arrived); }

  // The first one's sums are in memory; every thread that wrote some has fenced and synchronised with the caller.
  __device__ __forceinline__ void leave() const {
    asm volatile("red.release.gpu.global.or.b32 [%0], %1;" ::"l"(word), "r"(arrived << 1) : "memory");
  }

  // Waits for them and wipes the bits.
  __device__ __forceinline__ void take() const {
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    } while (!(seen & arrived << 1));
    atomicAnd(word, ~(arrived | arrived << 1));
  }
};

}  // namespace chord
