// A warp on the host: 32 lanes as fibers in lockstep, so that device headers which only count and vote run as they are.
//
// Every intrinsic lets each lane write its value, hands over to the next lane, and reads once all have written. Two boards take
// turns: no lane is ever two intrinsics ahead.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#define __device__
#define __host__
#define __forceinline__ inline

using std::max;
using std::min;

namespace host {

constexpr int kLanes = 32;
inline ucontext_t lanes[kLanes], home;
inline char stacks[kLanes][64 << 10];
inline int64_t boards[2][kLanes];
inline int turns[kLanes], current, running;
inline std::function<void(int)> body;

inline void pass_on() {
  const int mine = current;
  current = (current + 1) % kLanes;
  swapcontext(&lanes[mine], &lanes[current]);
}

inline const int64_t* meet(int64_t value) {
  int64_t* board = boards[turns[current]++ % 2];
  board[current] = value;
  pass_on();
  return board;
}

inline void enter() {
  body(current);
  if (--running == 0) setcontext(&home);
  pass_on();
}

// Runs `lane_body(lane)` for all lanes; every lane must call the same intrinsics.
inline void warp(std::function<void(int)> lane_body) {
  body = std::move(lane_body);
  running = kLanes, current = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    turns[lane] = 0;
    getcontext(&lanes[lane]);
    lanes[lane].uc_stack.ss_sp = stacks[lane];
    lanes[lane].uc_stack.ss_size = sizeof(stacks[lane]);
    makecontext(&lanes[lane], enter, 0);
  }
  swapcontext(&home, &lanes[0]);
}

}  // namespace host

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return static_cast<T>(host::meet(value)[lane % host::kLanes]);
}

template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const int mine = host::current;
  return static_cast<T>(host::meet(value)[mine < distance ? mine : mine - distance]);
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  const int64_t* votes = host::meet(vote);
  unsigned bits = 0;
  for (int lane = 0; lane < host::kLanes; ++lane) bits |= static_cast<unsigned>(votes[lane]) << lane;
  return bits;
}

inline int __reduce_add_sync(unsigned, int value) {
  const int64_t* values = host::meet(value);
  int sum = 0;
  for (int lane = 0; lane < host::kLanes; ++lane) sum += static_cast<int>(values[lane]);
  return sum;
}

inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }
inline int __clz(unsigned value) { return value ? __builtin_clz(value) : 32; }
inline unsigned __brev(unsigned value) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (value >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned atomicOr(unsigned* word, unsigned bits) {
  const unsigned before = *word;
  *word |= bits;
  return before;
}
inline unsigned atomicAnd(unsigned* word, unsigned bits) {
  const unsigned before = *word;
  *word &= bits;
  return before;
}
