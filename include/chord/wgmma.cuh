// wgmma.m64nNk16 with BF16 operands, FP32 sums, A in registers and B in shared memory, for every N of a token tile.
//
// Written here and not taken from CUTLASS: its file of all N is 56,000 lines long and would triple the compile time of a
// kernel that needs eight of them.
#pragma once

#include <cuda/std/cstdint>

namespace chord {

// Makes register and shared-memory writes visible to the products that follow; before the first of each group.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Low word of the matrix descriptor of a K-major tile in shared memory, rows of 128 bytes, 128-byte swizzle, 1024-byte aligned.
// Counts in 16 bytes: +2 is the next k16 step, +kRows * 8 the next 64 k.
__device__ __forceinline__ uint32_t wgmma_descriptor(uint32_t address) { return (1u << 16) | (address >> 4); }

// d += a * b. `b`: low word of the descriptor; the high word says 128-byte swizzle and 1024 bytes
// between groups of 8 rows. `d` may be longer than the kN / 2 values that take part.
template <int kN>
struct Wgmma;

// Row counts of the instructions that a kernel holds, rising.
template <int... kValues>
struct Widths {
  static constexpr int kCount = sizeof...(kValues);

  __host__ __device__ static constexpr int at(int index) {
    constexpr int values[] = {kValues...};
    return values[index];
  }

  static constexpr int kMost = at(kCount - 1);

  // The narrowest that holds `rows`.
  __host__ __device__ static constexpr int of(int rows) {
    int width = kMost;
    for (int i = kCount - 1; i >= 0; --i) width = at(i) >= rows ? at(i) : width;
    return width;
  }
};

#define CHORD_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CHORD_PLACES_32 CHORD_PLACES_16 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define CHORD_PLACES_48 CHORD_PLACES_32 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define CHORD_PLACES_64 CHORD_PLACES_48 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define CHORD_PLACES_80 CHORD_PLACES_64 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define CHORD_PLACES_96 CHORD_PLACES_80 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define CHORD_PLACES_112 CHORD_PLACES_96 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define CHORD_PLACES_128 CHORD_PLACES_112 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define CHORD_PLACES_144 CHORD_PLACES_128 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define CHORD_PLACES_160 CHORD_PLACES_144 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define CHORD_PLACES_176 CHORD_PLACES_160 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define CHORD_PLACES_192 CHORD_PLACES_176 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define CHORD_PLACES_208 CHORD_PLACES_192 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define CHORD_PLACES_224 CHORD_PLACES_208 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define CHORD_PLACES_240 CHORD_PLACES_224 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define CHORD_PLACES_256 CHORD_PLACES_240 ", " "%120, %121, %122, %123, %124, %125, %126, %127"
#define CHORD_SUMS_16 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define CHORD_SUMS_32 CHORD_SUMS_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define CHORD_SUMS_48 CHORD_SUMS_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define CHORD_SUMS_64 CHORD_SUMS_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define CHORD_SUMS_80 CHORD_SUMS_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define CHORD_SUMS_96 CHORD_SUMS_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define CHORD_SUMS_112 CHORD_SUMS_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define CHORD_SUMS_128 CHORD_SUMS_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define CHORD_SUMS_144 CHORD_SUMS_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define CHORD_SUMS_160 CHORD_SUMS_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define CHORD_SUMS_176 CHORD_SUMS_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define CHORD_SUMS_192 CHORD_SUMS_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define CHORD_SUMS_208 CHORD_SUMS_192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define CHORD_SUMS_224 CHORD_SUMS_208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define CHORD_SUMS_240 CHORD_SUMS_224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define CHORD_SUMS_256 CHORD_SUMS_240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// a0..a3, b: the places of the inputs, behind the kN / 2 sums.
#define CHORD_WGMMA(N, a0, a1, a2, a3, b)                                                                                                  \
  template <>                                                                                                                              \
  struct Wgmma<N> {                                                                                                                        \
    template <int kSums>                                                                                                                   \
    __device__ __forceinline__ static void multiply(float (&d)[kSums], const uint32_t (&a)[4], uint32_t low) {                             \
      asm volatile("{\n.reg .b64 desc;\nmov.b64 desc, {%" #b ", 0x40000040};\n"                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" CHORD_PLACES_##N "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                   "}, desc, 1, 1, 1, 0;\n}"                                                                                               \
                   : CHORD_SUMS_##N                                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low));                                                                \
    }                                                                                                                                      \
  };

CHORD_WGMMA(16, 8, 9, 10, 11, 12)
CHORD_WGMMA(32, 16, 17, 18, 19, 20)
CHORD_WGMMA(48, 24, 25, 26, 27, 28)
CHORD_WGMMA(64, 32, 33, 34, 35, 36)
CHORD_WGMMA(80, 40, 41, 42, 43, 44)
CHORD_WGMMA(96, 48, 49, 50, 51, 52)
CHORD_WGMMA(112, 56, 57, 58, 59, 60)
CHORD_WGMMA(128, 64, 65, 66, 67, 68)
CHORD_WGMMA(144, 72, 73, 74, 75, 76)
CHORD_WGMMA(160, 80, 81, 82, 83, 84)
CHORD_WGMMA(176, 88, 89, 90, 91, 92)
CHORD_WGMMA(192, 96, 97, 98, 99, 100)
CHORD_WGMMA(208, 104, 105, 106, 107, 108)
CHORD_WGMMA(224, 112, 113, 114, 115, 116)
CHORD_WGMMA(240, 120, 121, 122, 123, 124)
CHORD_WGMMA(256, 128, 129, 130, 131, 132)

#undef CHORD_WGMMA

}  // namespace chord
