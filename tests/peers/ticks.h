/* Time stamps of these programs: the processor's counter, which ticks evenly on current processors, otherwise the
 * clock. */
#ifndef TICKS_H
#define TICKS_H

#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static double clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static inline uint64_t ticks(void) {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return (uint64_t)clock_ns();
#endif
}

static double tick_ns = 1;

/* Takes 20 ms; `tick_ns` is right from then on. */
static void calibrate(void) {
    const double begin = clock_ns();
    const uint64_t first = ticks();
    double now;
    do {
        now = clock_ns();
    } while (now - begin < 20e6);
    tick_ns = (now - begin) / (double)(ticks() - first);
}

#endif
