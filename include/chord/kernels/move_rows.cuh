// Rows copied to where they are wanted, SiLU(gate) * up of their halves on the way if asked.
//
//   piece    kThreads x 8 columns of a row of the result: a thread reads 16 bytes (32 with the activation), and writes 16 to each destination
//   grid     a fixed number of CTAs, which step over all pieces
//   shared   none
//
// A row that nobody wants is not read: what it holds, NaN included, goes nowhere. Rows of `out` that no row names stay as they are.
#pragma once

#include "chord/vectors.cuh"

namespace chord::move_rows {

struct Params {
  const __nv_bfloat16* x;   // [rows, columns], twice as wide with the activation: gates, then ups
  __nv_bfloat16* out;       // [out_rows, columns]
  const int* destinations;  // [rows, each], or null: row r goes to row r
  const int64_t* limit;     // rows of out from here on are not written; or null
  const int* counts;        // x is blocks of `block` rows, of which the first counts[b] are meant; or null
  int64_t rows, out_rows;
  int vectors, each, block, activate;  // `vectors`: columns / 8
};
static_assert(sizeof(Params) == 72, "the host packs this struct without padding");

__device__ __forceinline__ Floats activated(uint4 gates, uint4 ups) {
  const Floats gate = widen(gates), up = widen(ups);
  Floats result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) result.of[i] = swiglu(gate.of[i], up.of[i]);
  return result;
}

__device__ __forceinline__ uint4 value_of(const Params& p, int64_t row, int vector) {
  const int64_t width = int64_t(p.vectors) * kVector;
  if (!p.activate) return load_vector(p.x + row * width + vector * kVector);
  const __nv_bfloat16* gate = p.x + row * 2 * width + vector * kVector;
  return narrow(activated(load_vector(gate), load_vector(gate + width)));
}

template <class Config>
__device__ __forceinline__ void kernel(const Params& p) {
  const int64_t last = p.limit ? min(max(*p.limit, int64_t(0)), p.out_rows) : p.out_rows;
  const int pieces = (p.vectors + Config::kThreads - 1) / Config::kThreads;
  for (int64_t piece = blockIdx.x; piece < p.rows * pieces; piece += gridDim.x) {
    const int64_t row = piece / pieces;
    const int vector = static_cast<int>(piece - row * pieces) * Config::kThreads + threadIdx.x;
    if (vector >= p.vectors || (p.counts && row % p.block >= p.counts[row / p.block])) continue;
    bool read = false;
    uint4 value;
    for (int i = 0; i < p.each; ++i) {
      const int64_t to = p.destinations ? p.destinations[row * p.each + i] : row;
      if (to < 0 || to >= last) continue;
      if (!read) value = value_of(p, row, vector);
      read = true;
      store_vector(p.out + int64_t(to * p.vectors + vector) * kVector, value);
    }
  }
}

}  // namespace chord::move_rows
