/* Properties of the calling thread, `thread cancel`, or its stack, `thread KIB`: started twice. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <string.h>

enum { LARGE = 1 << 20 };
static unsigned char to_peer[LARGE], from_peer[LARGE];
/* The steps that the thread has taken. */
static int steps;

/* The whole life of an endpoint, with messages of both protocols. */
static void live(void) {
    nemesia_endpoint *endpoint;
    int32_t rank, i;
    OK(nemesia_endpoint_open(NULL, &endpoint));
    OK(nemesia_endpoint_rank(endpoint, &rank));
    for (i = 0; i < 6; i++) {
        size_t len = i % 2 ? LARGE : 100;
        uint64_t request;
        nemesia_status status;
        memset(to_peer, 16 * rank + i, len);
        OK(nemesia_endpoint_irecv(endpoint, 1 - rank, 1, 0, len, from_peer, &request));
        OK(nemesia_endpoint_send(endpoint, 1 - rank, 1, to_peer, len));
        OK(nemesia_endpoint_wait(endpoint, request, -1, &status));
        CHECK(status.len == len && from_peer[0] == 16 * (1 - rank) + i && from_peer[len - 1] == from_peer[0]);
        OK(nemesia_endpoint_barrier(endpoint));
    }
    OK(nemesia_endpoint_close(endpoint));
}

static void *small(void *unused) {
    (void)unused;
    live();
    steps = 1;
    return NULL;
}

/* A cancellation is pending during all calls. Without the library's care, the first call of the operating system that
 * may wait ends the thread inside of the library. */
static void *cancelled(void *unused) {
    (void)unused;
    CHECK(pthread_cancel(pthread_self()) == 0);
    live();
    steps = 1;
    pthread_testcancel();
    steps = 2;
    return NULL;
}

int main(int count, char **words) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *result;
    int cancels = count > 1 && strcmp(words[1], "cancel") == 0;
    CHECK(count == 2 && pthread_attr_init(&attributes) == 0);
    if (!cancels) {
        CHECK(pthread_attr_setstacksize(&attributes, (size_t)atoi(words[1]) << 10) == 0);
    }
    CHECK(pthread_create(&thread, &attributes, cancels ? cancelled : small, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(steps == 1 && result == (cancels ? PTHREAD_CANCELED : NULL));
    return 0;
}
