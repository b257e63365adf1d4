// What a warp holds of a 64-k block before it is decoded: its rows of kBlocks m64 blocks, a word a k16 step and a scale pair a
// group of 32 k. Units of neighbouring m64 blocks lie four apart in a panel.
#pragma once

#include "chord/dequant.cuh"
#include "chord/ptx.cuh"

namespace chord {

template <int kBlocks>
struct UnitCodes {
  uint32_t words[kBlocks][4];
  uint32_t scales[kBlocks][2];

  // Offset of a lane's codes in a block; `unit`: the warp's first.
  static __device__ __forceinline__ uint32_t offset(int unit, int lane) { return unit * 512 + lane * 16; }

  // `block` points at the lane's codes in shared memory.
  __device__ __forceinline__ void load(uint32_t block, int unit, int lane) {
    const uint32_t to_scales = 4096 + unit / 2 * 128 + lane / 4 * 16 + unit % 2 * 8 - offset(unit, lane);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const uint4 codes = load_shared_128(block + m * 4 * 512);
      words[m][0] = codes.x, words[m][1] = codes.y, words[m][2] = codes.z, words[m][3] = codes.w;
      const uint2 pairs = load_shared_64(block + to_scales + m * 2 * 128);
      scales[m][0] = pairs.x, scales[m][1] = pairs.y;
    }
  }

  template <int kSteps>
  __device__ __forceinline__ void decode(Fragment (&fragments)[kSteps][kBlocks], int first_step) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        FusedDecoder::decode(fragments[step][m], words[m][first_step + step], FusedDecoder::scales(scales[m][(first_step + step) / 2]));
  }
};

}  // namespace chord
