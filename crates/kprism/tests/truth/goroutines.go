// SPDX-License-Identifier: MIT OR Apache-2.0

// Goroutines that pass values on: each waits for the others, and the runtime switches their stacks.
package main

import "sync"

//go:noinline
func leaf(i int) int { return i * 3 }

//go:noinline
func mid(i int) int { return leaf(i) + leaf(i+1) }

//go:noinline
func worker(in, out chan int, wg *sync.WaitGroup) {
	defer wg.Done()
	for v := range in {
		out <- mid(v)
	}
}

//go:noinline
func collect(out chan int) int {
	sum := 0
	for v := range out {
		sum += v
	}
	return sum
}

func main() {
	in, out := make(chan int), make(chan int)
	var wg sync.WaitGroup
	for w := 0; w < 3; w++ {
		wg.Add(1)
		go worker(in, out, &wg)
	}
	go func() {
		for i := 0; i < 200; i++ {
			in <- i
		}
		close(in)
	}()
	go func() { wg.Wait(); close(out) }()
	if collect(out) != 120000 {
		panic("a wrong sum")
	}
}
