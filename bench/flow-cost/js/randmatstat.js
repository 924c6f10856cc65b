// SPDX-License-Identifier: MIT OR Apache-2.0
// RandMatStat: statistics over traces of powers of small random matrices.
'use strict';
const { unit } = require('./bench.js');

const N = 5;
const ROUNDS = 100;

// Box and Muller, "A note on the generation of random normal deviates", 1958.
const normal = () => Math.sqrt(-2 * Math.log(1 - unit())) * Math.cos(2 * Math.PI * unit());

function multiply(n, m, a, b) {
  const c = new Float64Array(n * n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let k = 0; k < m; k++) sum += a[i * m + k] * b[k * n + j];
      c[i * n + j] = sum;
    }
  return c;
}

// The trace of the fourth power of m' m.
function trace(rows, columns, m) {
  const turned = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) turned[j * rows + i] = m[i * columns + j];
  let power = multiply(columns, rows, turned, m);
  power = multiply(columns, columns, power, power);
  power = multiply(columns, columns, power, power);
  let sum = 0;
  for (let i = 0; i < columns; i++) sum += power[i * columns + i];
  return sum;
}

function spread(values) {
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const square = values.reduce((a, b) => a + (b - mean) * (b - mean), 0);
  return Math.sqrt(square / (values.length - 1)) / mean;
}

const wide = [];
const square = [];
for (let i = 0; i < ROUNDS; i++) {
  const m = Float64Array.from({ length: 4 * N * N }, normal);
  wide.push(trace(N, 4 * N, m));
  square.push(trace(2 * N, 2 * N, m));
}
console.log(spread(wide) + spread(square));
