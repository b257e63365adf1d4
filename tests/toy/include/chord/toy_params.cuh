#pragma once

namespace chord {

struct ToyAddParams {
  const float* a;
  const float* b;
  float* out;
  long long count;
};

}  // namespace chord
