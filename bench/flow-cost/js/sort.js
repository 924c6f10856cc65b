// SPDX-License-Identifier: MIT OR Apache-2.0
// Sort: quicksort of random numbers.
'use strict';
const { unit } = require('./bench.js');

const N = 5000;

function sort(values, low, high) {
  while (low < high) {
    const pivot = values[(low + high) >> 1];
    let i = low;
    let j = high;
    while (i <= j) {
      while (values[i] < pivot) i++;
      while (values[j] > pivot) j--;
      if (i <= j) {
        const swap = values[i];
        values[i++] = values[j];
        values[j--] = swap;
      }
    }
    sort(values, low, j);
    low = i;
  }
}

let wrong = 0;
for (let round = 0; round < 5; round++) {
  const values = Float64Array.from({ length: N }, unit);
  sort(values, 0, N - 1);
  for (let i = 1; i < N; i++) wrong += values[i - 1] > values[i];
}
console.log(wrong);
