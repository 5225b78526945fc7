/* Two processes send a message back and forth. Rank 0 prints the time of one direction.
 *
 *   ffi/install.sh PREFIX
 *   cc -O2 ffi/examples/pingpong.c -o pingpong -IPREFIX/include -LPREFIX/lib -lnemesia -Wl,-rpath,PREFIX/lib
 *   nemesia run -n 2 ./pingpong          or: mpiexec.hydra -n 2 ./pingpong
 */
#define _POSIX_C_SOURCE 199309L
#include <nemesia.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_UP = 1000, ROUNDS = 10000, TAG = 7, BYTES = 8 };

static void check(int32_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, nemesia_status_name(status), nemesia_last_error_message());
        exit(EXIT_FAILURE);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void round_trip(nemesia_endpoint *endpoint, int32_t rank, char *message) {
    if (rank == 0) {
        check(nemesia_endpoint_send(endpoint, 1, TAG, message, BYTES), "send");
    }
    check(nemesia_endpoint_recv(endpoint, 1 - rank, TAG, 0, BYTES, message, NULL), "recv");
    if (rank == 1) {
        check(nemesia_endpoint_send(endpoint, 0, TAG, message, BYTES), "send");
    }
}

int main(void) {
    nemesia_endpoint *endpoint;
    char message[BYTES] = "nemesia";
    double start = 0;
    int32_t rank, size;
    int round;

    check(nemesia_endpoint_open(NULL, &endpoint), "open");
    check(nemesia_endpoint_rank(endpoint, &rank), "rank");
    check(nemesia_endpoint_size(endpoint, &size), "size");
    if (size != 2) {
        fprintf(stderr, "start 2 processes, not %d: nemesia run -n 2 ./pingpong\n", (int)size);
        check(nemesia_endpoint_close(endpoint), "close");
        return EXIT_FAILURE;
    }
    for (round = 0; round < WARM_UP + ROUNDS; round++) {
        if (round == WARM_UP) {
            start = seconds();
        }
        round_trip(endpoint, rank, message);
    }
    if (rank == 0) {
        printf("%d bytes, one way: %.0f ns\n", (int)BYTES, 1e9 * (seconds() - start) / (2 * ROUNDS));
    }
    check(nemesia_endpoint_close(endpoint), "close");
    return EXIT_SUCCESS;
}
