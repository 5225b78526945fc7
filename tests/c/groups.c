/* Collective calls among some ranks, the room for unexpected messages, receives that outlive other ranks, and a world
 * that meets another process. Two processes; the argument selects the case. */
#include "check.h"

#include <string.h>

static void members(nemesia_endpoint *endpoint, int32_t rank) {
    static const int32_t both[2] = {0, 1}, turned[2] = {1, 0}, beyond[3] = {0, 1, 2}, negative[2] = {-1, 0};
    int32_t survivors[2] = {-1, -1}, count = -1, number = -1, gone = -1;
    uint64_t flags = 0;
    int round;
    for (round = 0; round < 20; round++) {
        OK(nemesia_endpoint_barrier_among(endpoint, 2, both));
        OK(nemesia_endpoint_agree_among(endpoint, 2, both, (uint64_t)rank | 4, &flags, &gone));
        CHECK(flags == 4 && gone == 0);
        OK(nemesia_endpoint_shrink_among(endpoint, 2, both, survivors, &count, &number));
        CHECK(count == 2 && survivors[0] == 0 && survivors[1] == 1 && number == rank);
        /* A list of one rank concerns no other. */
        OK(nemesia_endpoint_barrier_among(endpoint, 1, &rank));
        OK(nemesia_endpoint_agree_among(endpoint, 1, &rank, 77, &flags, NULL));
        CHECK(flags == 77);
        OK(nemesia_endpoint_agree(endpoint, 9, &flags, NULL));
        CHECK(flags == 9);
    }
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_among(endpoint, 2, turned));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_among(endpoint, 0, both));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_among(endpoint, 2, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_agree_among(endpoint, 2, both, 1, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_shrink_among(endpoint, 2, both, NULL, &count, NULL));
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_agree_among(endpoint, 3, beyond, 1, &flags, NULL));
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_barrier_among(endpoint, 2, negative));
}

/* Fills the store with messages to the own rank. */
static void room(nemesia_endpoint *endpoint, int32_t rank) {
    uint64_t request, sent = 0, tag;
    int64_t word = 0;
    do {
        OK(nemesia_endpoint_isend(endpoint, rank, sent++, &word, sizeof word, &request));
    } while (nemesia_endpoint_test(endpoint, request, NULL) == NEMESIA_OK);
    GIVES(NEMESIA_ERR_UNEXPECTED_FULL, nemesia_endpoint_check_room(endpoint, request));
    CHECK(strstr(nemesia_last_error_message(), "NEMESIA_UNEXPECTED_BYTES") != NULL);
    GIVES(NEMESIA_PENDING, nemesia_endpoint_test(endpoint, request, NULL));
    for (tag = 0; tag < sent / 2; tag++) {
        OK(nemesia_endpoint_recv(endpoint, rank, tag, 0, sizeof word, &word, NULL));
    }
    OK(nemesia_endpoint_check_room(endpoint, request));
    OK(nemesia_endpoint_wait(endpoint, request, -1, NULL));
    for (; tag < sent; tag++) {
        OK(nemesia_endpoint_recv(endpoint, rank, tag, 0, sizeof word, &word, NULL));
    }
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_check_room(NULL, request));
}

static void any_source(nemesia_endpoint *endpoint, int32_t rank) {
    uint64_t request;
    int64_t word = 0, own = 42;
    int32_t failure = NEMESIA_FAILURE_NONE;
    if (rank == 1) return;
    OK(nemesia_endpoint_irecv(endpoint, NEMESIA_ANY_SOURCE, 0, UINT64_MAX, sizeof word, &word, &request));
    while (failure == NEMESIA_FAILURE_NONE) {
        GIVES(NEMESIA_PENDING, nemesia_endpoint_test(endpoint, request, NULL));
        OK(nemesia_endpoint_peer_failure(endpoint, 1, &failure));
    }
    OK(nemesia_endpoint_send(endpoint, 0, 1, &own, sizeof own));
    OK(nemesia_endpoint_wait(endpoint, request, -1, NULL));
    CHECK(word == own);
}

/* The first rank meets an endpoint that was opened alone, by the address that it has sent to the second rank, which
 * opened it. The world stays as it was. */
static void grow(nemesia_endpoint *endpoint, int32_t rank) {
    uint8_t own[NEMESIA_ADDRESS_BYTES], other[NEMESIA_ADDRESS_BYTES], met[NEMESIA_ADDRESS_BYTES];
    nemesia_status status;
    uint64_t peer = 0;
    int64_t word = 0;
    int32_t number = -1, size = -1;
    size_t count = 0;
    OK(nemesia_endpoint_address(endpoint, own));
    OK(nemesia_endpoint_peer_of(endpoint, 1 - rank, &peer));
    OK(nemesia_endpoint_address_of(endpoint, peer, other));
    OK(nemesia_endpoint_rank_of(endpoint, peer, &number));
    CHECK(number == 1 - rank && memcmp(own, other, sizeof own) != 0);
    GIVES(NEMESIA_ERR_NO_PEER, nemesia_endpoint_disconnect(endpoint, peer));
    CHECK(strstr(nemesia_last_error_message(), "rank of this world") != NULL);
    if (rank == 0) {
        OK(nemesia_endpoint_send(endpoint, 1, 1, own, sizeof own));
        OK(nemesia_endpoint_meet(endpoint, 1, own, NULL, 7, -1, 1, &count, met));
        CHECK(count == 1);
        OK(nemesia_endpoint_connect(endpoint, met, &peer));
        OK(nemesia_endpoint_rank_of(endpoint, peer, &number));
        OK(nemesia_endpoint_recv(endpoint, NEMESIA_ANY_SOURCE, 5, 0, sizeof word, &word, &status));
        CHECK(word == 55 && number >= 2 && status.rank == number);
        OK(nemesia_endpoint_send(endpoint, number, 6, &word, sizeof word));
        OK(nemesia_endpoint_size(endpoint, &size));
        CHECK(size == 2);
    } else {
        nemesia_endpoint *lone = NULL;
        OK(nemesia_endpoint_recv(endpoint, 0, 1, 0, sizeof other, other, NULL));
        OK(nemesia_endpoint_alone(NULL, &lone));
        OK(nemesia_endpoint_address(lone, own));
        OK(nemesia_endpoint_meet(lone, 1, own, other, 7, -1, 1, &count, met));
        CHECK(count == 1 && memcmp(met, other, sizeof met) == 0);
        OK(nemesia_endpoint_connect(lone, met, &peer));
        OK(nemesia_endpoint_rank_of(lone, peer, &number));
        word = 55;
        OK(nemesia_endpoint_send(lone, number, 5, &word, sizeof word));
        OK(nemesia_endpoint_recv(lone, number, 6, 0, sizeof word, &word, NULL));
        OK(nemesia_endpoint_close(lone));
    }
}

int main(int argc, char **argv) {
    nemesia_endpoint *endpoint = NULL;
    nemesia_config *config = NULL;
    int32_t rank = -1;
    CHECK(argc == 2);
    OK(nemesia_config_from_environment(&config));
    OK(nemesia_config_set(config, "NEMESIA_UNEXPECTED_BYTES", "65536"));
    OK(nemesia_config_set(config, "NEMESIA_ANY_SOURCE", "outlive"));
    OK(nemesia_endpoint_open(config, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_endpoint_rank(endpoint, &rank));
    if (strcmp(argv[1], "members") == 0) members(endpoint, rank);
    if (strcmp(argv[1], "room") == 0) room(endpoint, rank);
    if (strcmp(argv[1], "grow") == 0) grow(endpoint, rank);
    if (strcmp(argv[1], "any-source") == 0) {
        any_source(endpoint, rank);
    } else {
        OK(nemesia_endpoint_barrier(endpoint));
    }
    OK(nemesia_endpoint_close(endpoint));
    return EXIT_SUCCESS;
}
