// Work of one call, in ranges, on the threads of a pool. See _threads.c.
#ifndef GTENSOR_THREADS_H
#define GTENSOR_THREADS_H

#include <stdint.h>

// Does the items [begin, end) of a job. It must not call Python, fork, or end its thread.
typedef void gt_range(void *job, int64_t begin, int64_t end);

// Do all `count` items, in ranges of `least` items or more (the last may be shorter); returns when
// all are done.
//
// An item is done once, by one thread, so results do not depend on the number of threads if no
// item reads or writes what another one writes. The ranges are done by the calling thread and the
// pool's. One thread does all of them, in order, where gt_get_threads() says 1, for a call within
// a range, while another thread has the pool, and for some calls after the pool was late.
//
// The flags of the floating-point unit are then those that one thread would have raised. Ranges run
// with its rounding mode and its control of denormal numbers. Call it without the GIL.
void gt_parallel(gt_range *work, void *job, int64_t count, int64_t least);

// The number of threads of later calls, the calling one included; at least 1. Threads are started
// at the first call that needs them. That the pool was late is forgotten.
void gt_set_threads(int count);

// How many threads a call from this thread uses at most.
int gt_get_threads(void);

// 1: calls from this thread use no other thread from now on; 0: they may again. Returns what it
// was.
int gt_one_thread_here(int alone);

#endif
