// The end of a W4A16 tile: which four of a unit's 16 packed rows a lane owns, and where their results go.
//
// Plain weights: packed row = output feature. Interleaved gate/up: each 16-row unit holds 8 gate rows, then the 8 up rows
// of the same neurons; without SwiGLU the columns go back to their logical order, with it the pair becomes one output.
#pragma once

#include <cuda/std/cstdint>

#include <cuda_bf16.h>

namespace chord {

// `quad` is the lane's place among the four that share a unit. Four consecutive packed rows:
struct RowLanes {
  __device__ __forceinline__ static float4 read(const float* unit_rows, int quad) {
    return *reinterpret_cast<const float4*>(unit_rows + quad * 4);
  }
};

// Gate and up of two neurons: x, y are gates, z, w their ups.
struct PairLanes {
  __device__ __forceinline__ static float4 read(const float* unit_rows, int quad) {
    const float2 gate = *reinterpret_cast<const float2*>(unit_rows + quad * 2);
    const float2 up = *reinterpret_cast<const float2*>(unit_rows + 8 + quad * 2);
    return make_float4(gate.x, gate.y, up.x, up.y);
  }
};

template <bool kPairs>
struct LanesOf {
  using Type = RowLanes;
};
template <>
struct LanesOf<true> {
  using Type = PairLanes;
};

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float4 add(const float4& a, const float4& b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__device__ __forceinline__ float swiglu(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

template <class Config>
struct Epilogue {
  static_assert(!Config::kSwiglu || Config::kInterleaved, "SwiGLU needs gate and up of a neuron in one unit");
  using Lanes = typename LanesOf<Config::kSwiglu>::Type;
  static constexpr int kColumns = Config::kSwiglu ? Config::kN / 2 : Config::kN;

  // `value` times `scale` are the sums of the lane's four packed rows in `unit` of `panel`, for output row `row`.
  __device__ __forceinline__ static void store(__nv_bfloat16* out, float4 value, float scale, float weight, int row, int panel, int unit,
                                               int quad) {
    __nv_bfloat16* line = out + int64_t(row) * kColumns;
    value.x *= scale, value.y *= scale, value.z *= scale, value.w *= scale;
    if constexpr (Config::kSwiglu) {
      const int neuron = panel * 64 + unit * 8 + quad * 2;
      if (neuron < kColumns)
        *reinterpret_cast<uint32_t*>(line + neuron) = pack_bf16(swiglu(value.x, value.z) * weight, swiglu(value.y, value.w) * weight);
    } else {
      const int within = quad * 4;
      const int column = Config::kInterleaved ? panel * 64 + unit * 8 + within % 8 : panel * 128 + unit * 16 + within;
      const int limit = Config::kInterleaved ? Config::kN / 2 : Config::kN;
      const int offset = Config::kInterleaved && within >= 8 ? Config::kN / 2 : 0;
      if (column < limit)
        *reinterpret_cast<uint2*>(line + offset + column) =
            make_uint2(pack_bf16(value.x * weight, value.y * weight), pack_bf16(value.z * weight, value.w * weight));
    }
  }
};

// What a thread stores at a time: as much as the rows of the output are aligned to.
template <bool kAligned16>
struct ChunkOf {
  using Type = uint4;
};
template <>
struct ChunkOf<false> {
  using Type = uint2;
};

}  // namespace chord
