/* One cache line each way and nothing else: the machine's cost of a hand-over, for `handover.c` alone and for
 * `pingpong.c` just before and after each measurement. */
#ifndef HANDOVER_H
#define HANDOVER_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include "ticks.h"

struct lines {
    _Alignas(256) _Atomic uint64_t ping; /* apart, for processors that fetch lines in pairs */
    _Alignas(256) _Atomic uint64_t pong;
};

/* Polls without a pause, because this measures the limit; yields at times, because others may need the core. */
static inline void await(_Atomic uint64_t *line, uint64_t wanted) {
    enum { PATIENCE = 1 << 14 };
    for (;;) {
        int poll;
        for (poll = 0; poll < PATIENCE; poll++) {
            if (atomic_load_explicit(line, memory_order_acquire) == wanted) {
                return;
            }
        }
        sched_yield();
    }
}

/* Hands the line over and awaits its return, `count` times; `done` times both have done so before. */
static void ask(struct lines *lines, uint64_t done, uint64_t count, uint64_t *samples) {
    uint64_t trip, now, last = ticks();
    for (trip = done + 1; trip <= done + count; trip++) {
        atomic_store_explicit(&lines->ping, trip, memory_order_release);
        await(&lines->pong, trip);
        now = ticks();
        *samples++ = now - last;
        last = now;
    }
}

/* The other side of `ask`. */
static void answer(struct lines *lines, uint64_t done, uint64_t count) {
    uint64_t trip;
    for (trip = done + 1; trip <= done + count; trip++) {
        await(&lines->ping, trip);
        atomic_store_explicit(&lines->pong, trip, memory_order_release);
    }
}

static int compare(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The mean of the middle half: as robust against interruptions as the median, and finer than the steps of the
 * processor's counter (10 ns here). */
static double middle(uint64_t *samples, size_t count) {
    const size_t low = count / 4, high = count - count / 4;
    double sum = 0;
    size_t at;
    qsort(samples, count, sizeof *samples, compare);
    for (at = low; at < high; at++) {
        sum += (double)samples[at];
    }
    return sum / (double)(high - low);
}

#endif
