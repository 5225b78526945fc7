/* Processes without a launcher open a channel by the addresses of their endpoints: `channel_among DESIGN`. The
 * addresses travel through shared memory. Each process sends every other one a header and a payload, by the channel
 * and by its endpoint. */
#define _GNU_SOURCE
#include <nemesia_rdma_channel.h>

#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4, HEADER = 40, BYTES = 100000 };

struct store {
    pthread_barrier_t barrier;
    uint8_t addresses[SIZE][NEMESIA_ADDRESS_BYTES];
};

static uint8_t byte(int from, int to, size_t at) { return (uint8_t)(at * 31 + at / 251 + (size_t)(from * 7 + to)); }

/* Moves BYTES bytes to and from every other process. */
static void all_to_all(nemesia_channel *channel, int own) {
    static uint8_t out[SIZE][BYTES], into[SIZE][BYTES];
    size_t put[SIZE] = {0}, got[SIZE] = {0}, left = 2 * (SIZE - 1), done, at;
    int peer;
    for (peer = 0; peer < SIZE; peer++)
        for (at = 0; at < BYTES; at++) out[peer][at] = byte(own, peer, at);
    while (left > 0) {
        for (peer = 0; peer < SIZE; peer++) {
            size_t cut = put[peer] < HEADER ? HEADER - put[peer] : 0;
            nemesia_iovec list[2] = {{out[peer] + put[peer], cut}, {out[peer] + put[peer] + cut, 0}}, rest;
            list[1].len = BYTES - put[peer] - cut;
            if (peer == own) continue;
            if (put[peer] < BYTES) {
                OK(nemesia_channel_put(channel, peer, list, 2, &done));
                left -= (put[peer] += done) == BYTES;
            }
            if (got[peer] < BYTES) {
                rest.base = into[peer] + got[peer];
                rest.len = BYTES - got[peer];
                OK(nemesia_channel_get(channel, peer, &rest, 1, &done));
                left -= (got[peer] += done) == BYTES;
            }
        }
    }
    for (peer = 0; peer < SIZE; peer++)
        for (at = 0; peer != own && at < BYTES; at++) CHECK(into[peer][at] == byte(peer, own, at));
}

static void process(struct store *store, int own, const char *design) {
    nemesia_config *config = NULL;
    nemesia_endpoint *endpoint = NULL;
    nemesia_channel *channel = NULL;
    int32_t rank = -1, size = -1;
    int place, peer;
    uint8_t group[SIZE][NEMESIA_ADDRESS_BYTES];
    char text[2048];
    OK(nemesia_config_default(&config));
    OK(nemesia_endpoint_alone(config, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_config_from_environment(&config));
    OK(nemesia_config_set(config, "NEMESIA_CHANNEL_DESIGN", design));
    OK(nemesia_endpoint_address(endpoint, store->addresses[own]));
    pthread_barrier_wait(&store->barrier);
    /* The processes in reverse order. */
    for (peer = 0; peer < SIZE; peer++) memcpy(group[peer], store->addresses[SIZE - 1 - peer], sizeof group[peer]);
    place = SIZE - 1 - own;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_init_process_group_among(config, endpoint, 1, group[own], &channel,
                                                                         NULL, NULL, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_init_process_group_among(config, (nemesia_endpoint *)config, SIZE,
                                                                       group[0], &channel, NULL, NULL, NULL));
    OK(nemesia_channel_init_process_group_among(config, endpoint, SIZE, group[0], &channel, &rank, &size, NULL));
    nemesia_config_destroy(config);
    CHECK(rank == place && size == SIZE);
    OK(nemesia_channel_init(channel));
    OK(nemesia_channel_init(channel));
    all_to_all(channel, place);
    OK(nemesia_channel_explain(channel, sizeof text, text, NULL));
    CHECK(strstr(text, design) != NULL);
    OK(nemesia_channel_finalize(channel));
    /* The endpoint goes on. */
    OK(nemesia_endpoint_barrier_group(endpoint, SIZE, group[0]));
    OK(nemesia_endpoint_close(endpoint));
}

int main(int count, char **words) {
    struct store *store =
        mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pid_t children[SIZE];
    int own, status;
    CHECK(store != MAP_FAILED && count == 2);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&store->barrier, &shared, SIZE);
    for (own = 0; own < SIZE; own++) {
        children[own] = fork();
        CHECK(children[own] >= 0);
        if (children[own] == 0) {
            process(store, own, words[1]);
            exit(EXIT_SUCCESS);
        }
    }
    for (own = 0; own < SIZE; own++) {
        CHECK(waitpid(children[own], &status, 0) == children[own]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    return EXIT_SUCCESS;
}
