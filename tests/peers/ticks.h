/* Time stamps of both programs: the processor's counter, which ticks evenly on what is sold today; else the clock. */
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

#endif
