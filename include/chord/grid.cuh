// Overlap with the launches before and after this one on its stream (programmatic dependent launch).
//
// A launch that carries the attribute may start while the one before it still runs, from the moment on that each CTA of that one has
// called `let_next_start` or ended. `wait_for_previous` returns when the launches before it have ended and what they wrote can be
// read; without the attribute that is at once. Every CTA calls it before it ends, so that the end of a launch means the end of those
// before it too.
#pragma once

namespace chord {

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace chord
