// What a launch of the m16n8k16 kernel is told, and the row source that each layout of its rows takes.
#pragma once

#include "chord/grouped_rows.cuh"
#include "chord/rows.cuh"

namespace chord {

template <RowSource kSource, int kBM>
struct RowsOf {
  using Type = GroupedRows<kSource, kBM>;
};
template <int kBM>
struct RowsOf<RowSource::kIndexed, kBM> {
  using Type = IndexedRows<kBM>;
};

template <class RowParams>
struct W4A16MmaParams {
  const __nv_bfloat16* x;
  const uint8_t* weight;
  __nv_bfloat16* out;
  const float* row_weights;
  unsigned* ticket;  // this launch's own while it runs; zero before and after
  RowParams routing;
  int routed_before;  // whether what `routing` points to was written before the launch before this one
  int reserved;
};

}  // namespace chord
