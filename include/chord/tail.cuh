// How a persistent grid cuts its last wave. Tickets 0..whole-1 are whole tiles in complete waves; the tiles that are left
// (fewer than there are CTAs) are cut along K into equal pieces when that shortens the wave, one ticket a piece.
//
// A piece costs 1 / pieces of a tile, and cut tiles cost once what writing, counting and adding the pieces takes, about
// a fifth of a tile; `pieces` minimises waves of pieces plus that. At most twice as many pieces as CTAs exist, which
// bounds the workspace.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

template <int kMaxPieces, int kStages>
struct Tail {
  int whole, pieces, tickets;

  struct Piece {
    int tile, begin, end;  // stages of K
    int cut, index, pieces;
  };

  __device__ __forceinline__ Tail(int tiles, int workers) : whole(tiles), pieces(1), tickets(tiles) {
    if constexpr (kMaxPieces > 1) {
      const int left = tiles % workers;
      if (left == 0) return;
      float best = 1.0f;
      for (int cut = 2; cut <= kMaxPieces && cut <= kStages && cut * left <= 2 * workers; ++cut) {
        const float cost = float((cut * left + workers - 1) / workers) / cut + kCutCost;
        if (cost < best) best = cost, pieces = cut;
      }
      if (pieces > 1) whole = tiles - left, tickets = whole + left * pieces;
    }
  }

  __device__ __forceinline__ Piece piece(int ticket) const {
    if (kMaxPieces == 1 || ticket < whole) return {ticket, 0, kStages, 0, 0, 1};
    const int cut = (ticket - whole) / pieces, index = ticket - whole - cut * pieces;
    return {whole + cut, kStages * index / pieces, kStages * (index + 1) / pieces, cut, index, pieces};
  }

 private:
  static constexpr float kCutCost = 0.2f;
};

}  // namespace chord
