// INT4 codes to BF16 fragments of mma.m16n8k16, in three ways over the same bytes (value = code - 8).
//
// A word holds one lane's k16 step: nibbles a0, a2, a1, a3 in the low half, the next k in the high half, so that
// masks 0x000f000f and 0x00f000f0 pick a whole register each.
//   kSubnormal  a BF16 whose upper byte is zero equals v * 2^-133 for its low 8 bits, and HMMA takes such inputs exactly
//               (shown on the H200 only). No shift for half of the registers and no magic number: activations are scaled
//               by 2^60 (2^56 where the nibble sits four bits up), the sum by 2^73 afterwards.
//   kMagic      BF16 128 + code by OR with 0x4300; exact everywhere.
//   kScaled     (code - 8) * scale rounded to BF16, the plain formula, by FusedDecoder: no zero point folded into a start value
//               and no FP32 sum for each group, which pays where a fragment meets more than one token tile.
// kSubnormal and kMagic multiply exact codes and start each group's sum at minus the zero point times sum(x), made by an
// MMA whose A is constant; the group's scale is applied to the FP32 sum.
#pragma once

#include <cuda_bf16.h>

#include <cute/arch/mma_sm80.hpp>

namespace chord {

enum class Dequant { kSubnormal, kMagic, kScaled };

using Fragment = uint32_t[4];

__device__ __forceinline__ void mma(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1, const float (&c)[4]) {
  cute::SM80_16x8x16_F32BF16BF16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b0, b1, c[0], c[1], c[2], c[3]);
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Codes straight to BF16 `(code - 8) * scale`, rounded once as the plain formula is, in one fused multiply-add a pair.
//
// A nibble in place is the subnormal BF16 `code * 2^-133` (or 16 times that), and -8 * scale is exact because 8 is a power of
// two (136, the zero point of the OR-ed form, is not). All results carry 2^-32, which the sums give back: scales below
// 2^26 and outputs above 2^-90 lose nothing. The scale pair (rows g and g + 8) is broadcast by the instruction itself.
struct FusedDecoder {
  static constexpr float kSumScale = 4294967296.0f;  // 2^32

  struct Scales {
    __nv_bfloat162 low, high, zero;  // for nibbles in bits 0-3, for those in bits 4-7, and the zero point
  };

  __device__ __forceinline__ static Scales scales(uint32_t pair) {
    const __nv_bfloat162 scale = from_bits(pair);
    return {__hmul2(scale, from_bits(0x72007200u)), __hmul2(scale, from_bits(0x70007000u)), __hmul2(scale, from_bits(0xb100b100u))};
  }

  __device__ __forceinline__ static void decode(Fragment& a, uint32_t word, const Scales& scale) {
    const uint32_t upper = word >> 8;
    a[0] = bits(__hfma2(from_bits(word & 0x000f000fu), __low2bfloat162(scale.low), __low2bfloat162(scale.zero)));
    a[1] = bits(__hfma2(from_bits(upper & 0x000f000fu), __high2bfloat162(scale.low), __high2bfloat162(scale.zero)));
    a[2] = bits(__hfma2(from_bits(word & 0x00f000f0u), __low2bfloat162(scale.high), __low2bfloat162(scale.zero)));
    a[3] = bits(__hfma2(from_bits(upper & 0x00f000f0u), __high2bfloat162(scale.high), __high2bfloat162(scale.zero)));
  }

 private:
  __device__ __forceinline__ static __nv_bfloat162 from_bits(uint32_t value) { return reinterpret_cast<const __nv_bfloat162&>(value); }
  __device__ __forceinline__ static uint32_t bits(const __nv_bfloat162& value) { return reinterpret_cast<const uint32_t&>(value); }
};

template <Dequant kDequant>
struct Decoder {
  static constexpr bool kFoldsZeroPoint = kDequant != Dequant::kScaled;
  // What the finished FP32 sum is multiplied by.
  static constexpr float kSumScale = kDequant == Dequant::kSubnormal ? 9444732965739290427392.0f  // 2^73
                                     : kDequant == Dequant::kScaled ? FusedDecoder::kSumScale : 1.0f;

  __device__ __forceinline__ static void decode(Fragment& a, uint32_t word) {
    if constexpr (kDequant == Dequant::kSubnormal) {
      const uint32_t upper = word >> 8;
      a[0] = word & 0x000f000fu;
      a[1] = upper & 0x000f000fu;
      a[2] = word & 0x00f000f0u;
      a[3] = upper & 0x00f000f0u;
    } else {
      a[0] = magic(word);
      a[1] = magic(word >> 8);
      a[2] = magic(word >> 4);
      a[3] = magic(word >> 12);
    }
  }

  // Activations of one k32 group for one token tile of 8: two k16 steps of two registers each.
  __device__ __forceinline__ static void prepare(uint32_t (&b)[4]) {
    if constexpr (kDequant == Dequant::kSubnormal) {
      b[0] = multiply_bf16x2(b[0], kTwoTo60);
      b[2] = multiply_bf16x2(b[2], kTwoTo60);
      b[1] = multiply_bf16x2(b[1], kTwoTo56);
      b[3] = multiply_bf16x2(b[3], kTwoTo56);
    }
  }

  // The group's start value, minus the zero point times sum(x), in the accumulator's own layout.
  __device__ __forceinline__ static void start(float (&sum)[4], const uint32_t (&b)[4]) {
    const Fragment zero_point = {kZeroLow, kZeroLow, kZeroHigh, kZeroHigh};
    const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma(sum, zero_point, b[0], b[1], zero);
    mma(sum, zero_point, b[2], b[3], sum);
  }

 private:
  static constexpr uint32_t kTwoTo60 = 0x5d805d80u, kTwoTo56 = 0x5b805b80u;
  // -8 and -8 * 16 in units of 2^-133, or -(128 + 8).
  static constexpr uint32_t kZeroLow = kDequant == Dequant::kSubnormal ? 0x80088008u : 0xc308c308u;
  static constexpr uint32_t kZeroHigh = kDequant == Dequant::kSubnormal ? 0x80808080u : 0xc308c308u;

  __device__ __forceinline__ static uint32_t magic(uint32_t word) {
    uint32_t value;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(value) : "r"(word));
    return value;
  }
};

}  // namespace chord
