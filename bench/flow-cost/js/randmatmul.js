// SPDX-License-Identifier: MIT OR Apache-2.0
// RandMatMul: a product of large random matrices.
'use strict';
const { unit } = require('./bench.js');

const N = 192;
const a = Float64Array.from({ length: N * N }, unit);
const b = Float64Array.from({ length: N * N }, unit);
const c = new Float64Array(N * N);
for (let i = 0; i < N; i++)
  for (let k = 0; k < N; k++) for (let j = 0; j < N; j++) c[i * N + j] += a[i * N + k] * b[k * N + j];
let sum = 0;
for (let i = 0; i < N; i++) sum += c[i * N + i];
console.log(sum);
