// Eight BF16 values in one 16-byte access, computed on in FP32.
#pragma once

#include "chord/epilogue.cuh"

namespace chord {

constexpr int kVector = 8;

struct Floats {
  float of[kVector];
};

__device__ __forceinline__ uint4 load_vector(const __nv_bfloat16* source) { return *reinterpret_cast<const uint4*>(source); }

__device__ __forceinline__ void store_vector(__nv_bfloat16* destination, uint4 value) { *reinterpret_cast<uint4*>(destination) = value; }

__device__ __forceinline__ Floats widen(uint4 value) {
  Floats wide;
  const uint32_t words[] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    wide.of[2 * i] = __uint_as_float(words[i] << 16);
    wide.of[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return wide;
}

__device__ __forceinline__ uint4 narrow(const Floats& v) {
  return {pack_bf16(v.of[0], v.of[1]), pack_bf16(v.of[2], v.of[3]), pack_bf16(v.of[4], v.of[5]), pack_bf16(v.of[6], v.of[7])};
}

}  // namespace chord
