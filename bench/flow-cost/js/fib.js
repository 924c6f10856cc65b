// SPDX-License-Identifier: MIT OR Apache-2.0
// Fib: Fibonacci numbers by their definition.
'use strict';
const fib = (n) => (n < 2 ? n : fib(n - 1) + fib(n - 2));

console.log(fib(26));
