// SPDX-License-Identifier: MIT OR Apache-2.0
// ParseInt: random numbers written as text and read again.
'use strict';
const { bits } = require('./bench.js');

let wrong = 0;
for (let i = 0; i < 10000; i++) {
  const number = bits();
  wrong += parseInt(number.toString(16), 16) !== number;
}
console.log(wrong);
