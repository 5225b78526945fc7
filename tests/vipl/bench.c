/* Latency and bandwidth between two processes, beside a bare copy through shared memory.
 * `bench ROUNDS`: prints one line for each figure. */
#define _GNU_SOURCE
#include "common.h"

#include <sys/mman.h>
#include <time.h>

static int rounds = 20000;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static VIP_DESCRIPTOR *spin(side *own, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **)) {
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    long polls = 0;
    while ((code = done(own->vi, &found)) == VIP_NOT_DONE) {
        /* With fewer processors than processes, the other process must run. */
        if (++polls % 2000 == 0) usleep(0);
    }
    CHECK(code == VIP_SUCCESS);
    return found;
}

/* Messages of 4 bytes back and forth. */
static void latency(side *own) {
    int round, at;
    double start;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (at = 0; at < 64; at++) post_receive(own, (unsigned)at * 64, 4);
    connect_side(own);
    meet(own, 'b');
    start = now();
    for (round = 0; round < rounds; round++) {
        VIP_DESCRIPTOR *found;
        own->next = 64;
        if (!own->is_server) post_send(own, 8192, 4);
        found = spin(own, VipRecvDone);
        OK(VipPostRecv(own->vi, found, own->handle));
        if (own->is_server) post_send(own, 8192, 4);
        spin(own, VipSendDone);
    }
    if (own->is_server) {
        printf("%s memory: 4 bytes, one way: %.3f us\n", own->is_allocated ? "allocated" : "user",
               (now() - start) / rounds / 2 * 1e6);
        fflush(stdout);
    }
    meet(own, 'e');
    close_side(own);
}

/* Messages of one size in one direction, of which each is received into a buffer of its own. */
static void bandwidth(side *own) {
    static const unsigned lens[] = {4096, 16384, 65536};
    int at;
    unsigned kind;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    connect_side(own);
    for (kind = 0; kind < 3; kind++) {
        unsigned len = lens[kind], window = 8;
        int count = rounds / 4, done = 0, posted = 0;
        double start;
        if (own->is_server)
            for (at = 0; at < (int)window; at++) post_receive(own, (unsigned)at * len, len);
        meet(own, 'b');
        start = now();
        while (done < count) {
            if (own->is_server) {
                VIP_DESCRIPTOR *found = spin(own, VipRecvDone);
                done++;
                if (done + (int)window <= count) OK(VipPostRecv(own->vi, found, own->handle));
                if (done % 4 == 0) tell(own, "c", 1);
            } else {
                char credit;
                if (posted - done / 4 * 4 >= (int)window) hear(own, &credit, 1);
                own->next = 64;
                post_send(own, (unsigned)(posted % 4) * len, len);
                posted++;
                spin(own, VipSendDone);
                done++;
                if (posted >= (int)window && posted % 4 == 0 && posted < count) hear(own, &credit, 1);
            }
        }
        meet(own, 'e');
        if (own->is_server) {
            printf("%s memory: %u bytes: %.2f GB/s\n", own->is_allocated ? "allocated" : "user", len,
                   (double)len * count / (now() - start) * 1e-9);
            fflush(stdout);
        }
    }
    close_side(own);
}

int main(int count, char **arguments) {
    int is_allocated;
    if (count > 1) rounds = atoi(arguments[1]);
    CHECK(rounds >= 16);
    for (is_allocated = 1; is_allocated >= 0; is_allocated--) {
        two_processes("latency", is_allocated, latency);
    }
    return 0;
}
