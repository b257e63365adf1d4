// The rows of each token's routed ids added up: out[t] = addend[t] + sum over j of weight[t, j] * x[rows[t, j]], j ascending.
//
//   piece    kThreads x 8 columns of a token: a thread reads 16 bytes of each of its rows, kAtOnce of them in flight, and writes 16
//   grid     a fixed number of CTAs, which step over all pieces
//   shared   none
//
// FP32 sums in the order of the ids, rounded once. A row of -1 is not read, so what lies in rows that nobody wrote never counts.
#pragma once

#include "chord/grid.cuh"
#include "chord/vectors.cuh"

namespace chord::combine_rows {

constexpr int kAtOnce = 8;

struct Params {
  const __nv_bfloat16* x;       // [any, columns]
  const int* rows;              // [tokens, top_k]: a row of x, or -1
  const float* weights;         // [tokens, top_k], or null: every row counts once
  const __nv_bfloat16* addend;  // [tokens, columns], or null
  __nv_bfloat16* out;           // [tokens, columns]; may be the addend
  int64_t tokens;
  int vectors, top_k;  // `vectors`: columns / 8
};
static_assert(sizeof(Params) == 56, "the host packs this struct without padding");

__device__ __forceinline__ void add(Floats& sum, float weight, uint4 value) {
  const Floats wide = widen(value);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.of[i] = fmaf(weight, wide.of[i], sum.of[i]);
}

template <class Config>
__device__ __forceinline__ void kernel(const Params& p) {
  const int64_t width = int64_t(p.vectors) * kVector;
  const int pieces = (p.vectors + Config::kThreads - 1) / Config::kThreads;
  wait_for_previous();
  for (int64_t piece = blockIdx.x; piece < p.tokens * pieces; piece += gridDim.x) {
    const int64_t token = piece / pieces, ids = token * p.top_k;
    const int vector = static_cast<int>(piece - token * pieces) * Config::kThreads + threadIdx.x;
    if (vector >= p.vectors) continue;
    const int64_t place = token * width + vector * kVector;
    Floats sum = {};
    if (p.addend) sum = widen(load_vector(p.addend + place));
    for (int first = 0; first < p.top_k; first += kAtOnce) {
      int row[kAtOnce];
      float weight[kAtOnce];
      uint4 value[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool inside = first + i < p.top_k;
        row[i] = inside ? p.rows[ids + first + i] : -1;
        weight[i] = inside && p.weights ? p.weights[ids + first + i] : 1.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (row[i] >= 0) value[i] = load_vector(p.x + int64_t(row[i]) * width + vector * kVector);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (row[i] >= 0) add(sum, weight[i], value[i]);
    }
    store_vector(p.out + place, narrow(sum));
  }
}

}  // namespace chord::combine_rows
