// How a persistent grid hands out its tiles: whole ones first, those of the last, incomplete wave as two halves.
//
// A lone SM reads a panel faster than it multiplies it, so the last wave ends sooner when two CTAs take half of a tile's
// outputs each: both read the whole panel (the second from L2), each does half of the arithmetic, and nothing is
// exchanged. Halves are made only when every half finds an idle CTA.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

struct LastWave {
  int whole, tickets;

  struct Piece {
    int tile;
    int half;  // 0 or 1; -1: the whole tile
  };

  __device__ __forceinline__ LastWave(int tiles, int workers, bool halves) : whole(tiles), tickets(tiles) {
    const int left = tiles % workers;
    if (halves && 2 * left <= workers) whole = tiles - left, tickets = tiles + left;
  }

  __device__ __forceinline__ Piece piece(int ticket) const {
    const int cut = ticket - whole;
    return cut < 0 ? Piece{ticket, -1} : Piece{whole + cut / 2, cut % 2};
  }
};

}  // namespace chord
