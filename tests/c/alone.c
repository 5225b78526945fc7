/* Endpoints that open alone, and their peers: `alone CASE`. Several endpoints of this process meet each other. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t SECOND = 1000000000;
static const uint64_t TAG = 5;

static nemesia_endpoint *opened(uint32_t threads, const char *name, const char *value) {
    nemesia_config *config = NULL;
    nemesia_endpoint *endpoint = NULL;
    OK(nemesia_config_default(&config));
    OK(nemesia_config_set_threads(config, threads));
    if (name != NULL) OK(nemesia_config_set(config, name, value));
    OK(nemesia_endpoint_alone(config, &endpoint));
    nemesia_config_destroy(config);
    return endpoint;
}

static nemesia_endpoint *alone(void) { return opened(NEMESIA_THREADS_SINGLE, NULL, NULL); }

static uint64_t peer_at(nemesia_endpoint *endpoint, nemesia_endpoint *other) {
    uint8_t address[NEMESIA_ADDRESS_BYTES];
    uint64_t peer, again;
    OK(nemesia_endpoint_address(other, address));
    OK(nemesia_endpoint_connect(endpoint, address, &peer));
    OK(nemesia_endpoint_connect(endpoint, address, &again));
    CHECK(peer == again && peer != NEMESIA_NO_PEER);
    return peer;
}

static uint32_t stage(nemesia_endpoint *endpoint, uint64_t peer) {
    uint32_t stage = 99;
    OK(nemesia_endpoint_stage_of(endpoint, peer, &stage));
    return stage;
}

/* Makes progress at both ends until the first one has this stage. */
static void reach(nemesia_endpoint *endpoint, nemesia_endpoint *other, uint64_t peer, uint32_t wanted) {
    while (stage(endpoint, peer) != wanted) {
        CHECK(nemesia_endpoint_wait_progress(endpoint, SECOND / 1000) >= 0);
        CHECK(nemesia_endpoint_wait_progress(other, 0) >= 0);
    }
}

/* A world of this process only, which may have further peers. */
static nemesia_endpoint *world(void) {
    nemesia_endpoint *endpoint;
    OK(nemesia_endpoint_open(NULL, &endpoint));
    return endpoint;
}

/* Connects, sends, learns who has sent, answers, disconnects, and closes. */
static void converse(nemesia_endpoint *one, nemesia_endpoint *two) {
    uint8_t addresses[2][NEMESIA_ADDRESS_BYTES], found[NEMESIA_ADDRESS_BYTES];
    const uint64_t peer = peer_at(one, two);
    uint64_t request, sender;
    int32_t to = -7, from, failure;
    char word[8] = "";
    nemesia_status status;
    OK(nemesia_endpoint_address(one, addresses[0]));
    OK(nemesia_endpoint_address(two, addresses[1]));
    CHECK(memcmp(addresses[0], addresses[1], sizeof addresses[0]) != 0);
    CHECK(stage(one, peer) == NEMESIA_STAGE_APART);
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait_connected(one, peer, 0, &to));
    CHECK(to == -7 && stage(one, peer) == NEMESIA_STAGE_CALLING);
    OK(nemesia_endpoint_rank_of(one, peer, &to));
    CHECK(to >= 1);
    /* Before the connection is made. */
    OK(nemesia_endpoint_isend(one, to, TAG, "hello", 6, &request));
    reach(one, two, peer, NEMESIA_STAGE_CONNECTED);
    OK(nemesia_endpoint_wait_connected(one, peer, SECOND, NULL));
    while (nemesia_endpoint_test(one, request, NULL) == NEMESIA_PENDING) {
        CHECK(nemesia_endpoint_wait_progress(two, SECOND / 1000) >= 0);
    }
    OK(nemesia_endpoint_recv(two, NEMESIA_ANY_SOURCE, TAG, 0, sizeof word, word, &status));
    CHECK(strcmp(word, "hello") == 0);
    OK(nemesia_endpoint_peer_of(two, status.rank, &sender));
    OK(nemesia_endpoint_address_of(two, sender, found));
    CHECK(memcmp(found, addresses[0], sizeof found) == 0 && peer_at(two, one) == sender);
    OK(nemesia_endpoint_rank_of(two, sender, &from));
    CHECK(from == status.rank);
    OK(nemesia_endpoint_send(two, from, TAG, "answer", 7));
    OK(nemesia_endpoint_recv(one, to, TAG, 0, sizeof word, word, NULL));
    CHECK(strcmp(word, "answer") == 0);
    OK(nemesia_endpoint_peer_failure(one, to, &failure));
    CHECK(failure == NEMESIA_FAILURE_NONE);

    OK(nemesia_endpoint_disconnect(one, peer));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_disconnect(one, peer));
    OK(nemesia_endpoint_peer_failure(one, to, &failure));
    CHECK(failure == NEMESIA_FAILURE_FINISHED);
    GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_send(one, to, TAG, "late", 5));
    reach(two, one, sender, NEMESIA_STAGE_LEFT);
    GIVES(NEMESIA_ERR_ENDED, nemesia_endpoint_rank_of(two, sender, &from));
    /* Again, from the other side. */
    CHECK(peer_at(two, one) == sender && stage(two, sender) == NEMESIA_STAGE_APART);
    OK(nemesia_endpoint_rank_of(two, sender, &from));
    reach(two, one, sender, NEMESIA_STAGE_CONNECTED);
    OK(nemesia_endpoint_close(two));
    OK(nemesia_endpoint_close(one));
}

/* NULL, foreign bytes, and calls that need the other kind of endpoint. */
static void arguments(void) {
    nemesia_endpoint *one = alone(), *two = alone(), *none = NULL;
    uint8_t address[NEMESIA_ADDRESS_BYTES], wrong[NEMESIA_ADDRESS_BYTES];
    uint64_t peer = 99, flags = 99;
    int32_t rank = -7;
    uint32_t stage = 99;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_alone(NULL, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_alone((nemesia_config *)(void *)one, &none));
    CHECK(none == NULL);
    OK(nemesia_endpoint_address(one, address));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_address(one, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_address(NULL, wrong));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_connect(two, NULL, &peer));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_connect(two, address, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_rank_of(two, peer, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_peer_of(two, 1, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_address_of(two, peer, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_stage_of(two, peer, NULL));
    GIVES(NEMESIA_ERR_ADDRESS, nemesia_endpoint_connect(one, address, &peer));
    memset(wrong, 1, sizeof wrong);
    GIVES(NEMESIA_ERR_ADDRESS, nemesia_endpoint_connect(one, wrong, &peer));
    memset(wrong, 0, sizeof wrong);
    GIVES(NEMESIA_ERR_ADDRESS, nemesia_endpoint_connect(one, wrong, &peer));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_peer_of(one, 0, &peer));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_peer_of(one, 1, &peer));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_peer_of(one, 2147483647, &peer));
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_peer_of(one, -1, &peer));
    CHECK(peer == 99);
    GIVES(NEMESIA_ERR_NO_WORLD, nemesia_endpoint_barrier(one));
    GIVES(NEMESIA_ERR_NO_WORLD, nemesia_endpoint_agree(one, 1, &flags, NULL));
    CHECK(flags == 99);
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_rank_of(one, 0, &rank));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_address_of(one, 0, wrong));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_stage_of(one, 0, &stage));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_wait_connected(one, 0, 0, &rank));
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_disconnect(one, 0));
    CHECK(rank == -7 && stage == 99 && wrong[0] == 0);
    OK(nemesia_endpoint_close(two));
    OK(nemesia_endpoint_close(one));
}

/* Peers that were released, or never existed; the limit on connections. */
static void stale(void) {
    nemesia_endpoint *one = opened(NEMESIA_THREADS_SINGLE, "NEMESIA_CONNECTIONS", "1");
    nemesia_endpoint *two = alone(), *three = alone();
    uint8_t address[NEMESIA_ADDRESS_BYTES] = {7};
    const uint64_t peer = peer_at(one, two);
    uint64_t wrong[4];
    size_t at;
    int32_t rank = -7;
    uint32_t stage_of = 99;
    OK(nemesia_endpoint_disconnect(one, peer));
    wrong[0] = peer;
    wrong[1] = NEMESIA_NO_PEER;
    wrong[2] = NEMESIA_NO_PEER - 1;
    wrong[3] = 12345;
    /* The place is used again, by another peer. */
    CHECK(peer_at(one, three) != peer);
    for (at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_rank_of(one, wrong[at], &rank));
        GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_address_of(one, wrong[at], address));
        GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_stage_of(one, wrong[at], &stage_of));
        GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_wait_connected(one, wrong[at], -1, &rank));
        GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_disconnect(one, wrong[at]));
    }
    CHECK(rank == -7 && stage_of == 99 && address[0] == 7);
    OK(nemesia_endpoint_rank_of(one, peer_at(one, three), &rank));
    GIVES(NEMESIA_ERR_CONNECTIONS, nemesia_endpoint_rank_of(one, peer_at(one, two), &rank));
    OK(nemesia_endpoint_disconnect(one, peer_at(one, three)));
    OK(nemesia_endpoint_rank_of(one, peer_at(one, two), &rank));
    OK(nemesia_endpoint_close(three));
    OK(nemesia_endpoint_close(two));
    OK(nemesia_endpoint_close(one));
}

/* A peer that is gone before it was called, and one that admits no strangers. */
static void unreachable(void) {
    nemesia_endpoint *one = alone(), *gone = alone();
    nemesia_endpoint *closed = opened(NEMESIA_THREADS_SINGLE, "NEMESIA_STRANGERS", "refuse");
    const uint64_t peers[2] = {peer_at(one, gone), peer_at(one, closed)};
    uint64_t request;
    int32_t rank, failure;
    OK(nemesia_endpoint_close(gone));
    GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_wait_connected(one, peers[0], -1, &rank));
    CHECK(stage(one, peers[0]) >= NEMESIA_STAGE_LOST);
    OK(nemesia_endpoint_rank_of(one, peers[1], &rank));
    OK(nemesia_endpoint_isend(one, rank, TAG, "refused", 8, &request));
    reach(one, closed, peers[1], NEMESIA_STAGE_REFUSED);
    OK(nemesia_endpoint_peer_failure(one, rank, &failure));
    CHECK(failure == NEMESIA_FAILURE_UNREACHABLE);
    GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_wait(one, request, 60 * SECOND, NULL));
    CHECK(nemesia_last_error_rank() == rank);
    GIVES(NEMESIA_ERR_ENDED, nemesia_endpoint_rank_of(one, peers[1], &rank));
    OK(nemesia_endpoint_close(closed));
    OK(nemesia_endpoint_close(one));
}

/* Meets, and checks that the other group is this one process. */
static void meets(nemesia_endpoint *endpoint, const uint8_t *called, const uint8_t *expected) {
    uint8_t own[NEMESIA_ADDRESS_BYTES], met[2][NEMESIA_ADDRESS_BYTES];
    size_t size = 99;
    OK(nemesia_endpoint_address(endpoint, own));
    OK(nemesia_endpoint_meet(endpoint, 1, own, called, 3, 100 * SECOND, 2, &size, met[0]));
    CHECK(size == 1 && (expected == NULL || memcmp(met[0], expected, sizeof met[0]) == 0));
    size = 99;
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_meet(endpoint, 1, own, called, 3, 100 * SECOND, 0, &size, NULL));
    CHECK(size == 1);
}

/* Two groups of one process each meet by the address of one, twice. */
static void meeting(void) {
    uint8_t address[NEMESIA_ADDRESS_BYTES], twice[2][NEMESIA_ADDRESS_BYTES];
    nemesia_endpoint *endpoint;
    int pipes[2], status = 1;
    size_t size = 99;
    CHECK(pipe(pipes) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    endpoint = alone();
    if (child == 0) {
        CHECK(read(pipes[0], address, sizeof address) == sizeof address);
        meets(endpoint, address, address);
        OK(nemesia_endpoint_close(endpoint));
        exit(EXIT_SUCCESS);
    }
    OK(nemesia_endpoint_address(endpoint, address));
    memcpy(twice[0], address, sizeof address);
    memcpy(twice[1], address, sizeof address);
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_meet(endpoint, 1, address, NULL, 1, 0, 0, &size, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_meet(endpoint, 2, twice[0], NULL, 1, 0, 0, &size, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_meet(endpoint, 0, address, NULL, 1, 0, 0, &size, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_meet(endpoint, 1, NULL, NULL, 1, 0, 0, &size, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_meet(endpoint, 1, address, NULL, 1, 0, 0, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_meet(endpoint, 1, address, NULL, 1, 0, 1, &size, NULL));
    CHECK(size == 99);
    CHECK(write(pipes[1], address, sizeof address) == sizeof address);
    meets(endpoint, NULL, NULL);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    OK(nemesia_endpoint_close(endpoint));
}

int main(int count, char **words) {
    const char *wanted = count > 1 ? words[1] : "";
    const uint32_t single = NEMESIA_THREADS_SINGLE, multiple = NEMESIA_THREADS_MULTIPLE;
    if (strcmp(wanted, "converse") == 0) converse(opened(single, NULL, NULL), opened(single, NULL, NULL));
    else if (strcmp(wanted, "threads") == 0) converse(opened(multiple, NULL, NULL), opened(multiple, NULL, NULL));
    else if (strcmp(wanted, "world") == 0) converse(world(), world());
    else if (strcmp(wanted, "arguments") == 0) arguments();
    else if (strcmp(wanted, "stale") == 0) stale();
    else if (strcmp(wanted, "unreachable") == 0) unreachable();
    else if (strcmp(wanted, "meeting") == 0) meeting();
    else CHECK(!"a case");
    return EXIT_SUCCESS;
}
