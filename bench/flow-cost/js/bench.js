// SPDX-License-Identifier: MIT OR Apache-2.0
// What the micro-benchmarks share: a random number generator whose numbers are the same everywhere.
'use strict';

let state = 2463534242;

// Marsaglia, "Xorshift RNGs", 2003.
exports.bits = () => {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  state >>>= 0;
  return state;
};

exports.unit = () => exports.bits() / 4294967296;
