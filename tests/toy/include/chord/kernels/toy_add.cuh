#pragma once

// out[i] = a[i] + kScale * b[i]: the smallest kernel that uses a project header, a Config and one parameter struct.

#include "chord/toy_params.cuh"

namespace chord {

template <typename Config>
__device__ void toy_add(const ToyAddParams& params) {
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index < params.count) params.out[index] = params.a[index] + Config::kScale * params.b[index];
}

}  // namespace chord
