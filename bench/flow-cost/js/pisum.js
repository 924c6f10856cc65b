// SPDX-License-Identifier: MIT OR Apache-2.0
// PiSum: a series that ends in pi squared by six, again and again.
'use strict';
let sum = 0;
for (let j = 0; j < 100; j++) {
  sum = 0;
  for (let k = 1; k <= 10000; k++) sum += 1 / (k * k);
}
console.log(sum);
