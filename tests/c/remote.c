/* Active messages and one-sided operations in C: `remote CASE`, started twice by the launcher. */
#include "check.h"

#include <string.h>

enum { ASK = 1, ANSWER = 2, QUESTIONS = 500, LARGE = 300000 };
static const int64_t FOR_EVER = -1;

static nemesia_endpoint *endpoint;
static int32_t rank;
static int32_t peer;

static void barrier(void) {
    OK(nemesia_endpoint_send(endpoint, peer, 999, NULL, 0));
    OK(nemesia_endpoint_recv(endpoint, peer, 999, 0, 0, NULL, NULL));
}

/* Sends the key of a region to the peer, and receives the peer's. */
static nemesia_remote_key exchange(uint64_t region) {
    nemesia_remote_key mine, its;
    OK(nemesia_endpoint_remote_key(endpoint, region, &mine));
    OK(nemesia_endpoint_send(endpoint, peer, 1, &mine, sizeof mine));
    OK(nemesia_endpoint_recv(endpoint, peer, 1, 0, sizeof its, &its, NULL));
    return its;
}

static void wait_for(uint64_t request) { OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL)); }

struct count {
    int asked;
    int answered;
    int32_t used;
};

/* Operations that end after a few instructions are refused like all others. */
static void use_at_hand(void) {
    static unsigned char bytes[64];
    uint64_t request = 99;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(endpoint, peer, 1, bytes, 8));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(endpoint, peer, 1, bytes, sizeof bytes));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_isend(endpoint, peer, 1, bytes, 8, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_isend(endpoint, peer, 1, bytes, sizeof bytes, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_recv(endpoint, peer, 1, 0, 8, bytes, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_irecv(endpoint, peer, 1, 0, 8, bytes, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_wait(endpoint, NEMESIA_REQUEST_NONE, 0, NULL));
    CHECK(request == 99);
}

static void ask(void *context, int32_t from, const void *header, size_t header_len, const void *payload,
                size_t len, nemesia_incoming *message) {
    struct count *count = context;
    int number;
    CHECK(from == peer && header_len == sizeof number && len == 5 && memcmp(payload, "hello", 5) == 0);
    memcpy(&number, header, sizeof number);
    CHECK(number == count->asked++);
    /* A handler runs inside a call of the endpoint. */
    use_at_hand();
    count->used = nemesia_endpoint_send(endpoint, peer, 1, NULL, 0);
    OK(nemesia_incoming_reply(message, ANSWER, header, header_len, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_incoming_reply(message, ANSWER, NULL, 1, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_incoming_reply(NULL, ANSWER, NULL, 0, NULL, 0));
}

static void answer(void *context, int32_t from, const void *header, size_t header_len, const void *payload,
                   size_t len, nemesia_incoming *message) {
    struct count *count = context;
    int number;
    CHECK(from == peer && header_len == sizeof number && payload != NULL && len == 0 && message != NULL);
    memcpy(&number, header, sizeof number);
    CHECK(number == count->answered++);
}

static void active(void) {
    struct count count = {0, 0, NEMESIA_OK};
    static char large[1 << 25];
    uint64_t request = 99, unhandled = 99;
    size_t most = 0;
    int number;
    OK(nemesia_endpoint_set_handler(endpoint, ASK, ask, &count));
    OK(nemesia_endpoint_set_handler(endpoint, ANSWER, answer, &count));
    barrier();
    for (number = 0; number < QUESTIONS; number++) {
        OK(nemesia_endpoint_send_active(endpoint, peer, ASK, &number, sizeof number, "hello", 5));
    }
    while (count.asked < QUESTIONS || count.answered < QUESTIONS) OK(nemesia_endpoint_progress(endpoint, NULL));
    CHECK(count.used == NEMESIA_ERR_ARGUMENT);
    OK(nemesia_endpoint_active_bytes(endpoint, &most));
    CHECK(most >= 256 && most < sizeof large);
    GIVES(NEMESIA_ERR_TOO_LONG,
          nemesia_endpoint_isend_active(endpoint, peer, ASK, NULL, 0, large, most + 1, &request));
    CHECK(request == 99);
    barrier();
    OK(nemesia_endpoint_set_handler(endpoint, ASK, NULL, NULL));
    barrier();
    OK(nemesia_endpoint_isend_active(endpoint, peer, ASK, "head", 4, large, most - 4, &request));
    wait_for(request);
    for (unhandled = 0; unhandled == 0;) {
        OK(nemesia_endpoint_progress(endpoint, NULL));
        OK(nemesia_endpoint_unhandled(endpoint, &unhandled));
    }
    CHECK(unhandled == 1);
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_send_active(endpoint, 2, ASK, NULL, 0, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send_active(endpoint, peer, ASK, NULL, 1, NULL, 0));
}

/* Ten values after the others, which no other process changes. */
static void fetch_arrays(const nemesia_remote_key *key) {
    int64_t by[10], old[10], at, round;
    uint64_t request = 99;
    for (round = 0; round < 3; round++) {
        for (at = 0; at < 10; at++) by[at] = at;
        OK(nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, by, 10, old,
                                              &request));
        wait_for(request);
        for (at = 0; at < 10; at++) CHECK(old[at] == at * round);
    }
    OK(nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64, NEMESIA_OP_NOTHING, NULL, 10,
                                          old, &request));
    wait_for(request);
    for (at = 0; at < 10; at++) CHECK(old[at] == 3 * at);
    request = 99;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64,
                                                                   NEMESIA_OP_SUM, NULL, 10, old, &request));
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 24, NEMESIA_TYPE_I64,
                                                                 NEMESIA_OP_SUM, by, 10, old, &request));
    /* The operands would be overwritten by old values; values that do not count may overlap. */
    for (at = 0; at < 3; at++) {
        static int64_t both[19];
        static const int from[] = {9, 0, 5}, into[] = {0, 9, 5};
        GIVES(NEMESIA_ERR_ARGUMENT,
              nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64, NEMESIA_OP_SUM,
                                                 both + from[at], 10, both + into[at], &request));
        CHECK(strstr(nemesia_last_error_message(), "overlap") != NULL);
    }
    CHECK(request == 99);
    OK(nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64, NEMESIA_OP_NOTHING, old, 10, old,
                                          &request));
    wait_for(request);
    for (at = 0; at < 10; at++) CHECK(old[at] == 3 * at);
    /* Arrays that do not overlap. */
    {
        static int64_t both[20];
        OK(nemesia_endpoint_ifetch_accumulate(endpoint, key, LARGE + 16, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, both, 10,
                                              both + 10, &request));
        wait_for(request);
        for (at = 0; at < 10; at++) CHECK(both[10 + at] == 3 * at && both[at] == 0);
    }
}

static void one_sided(void) {
    static unsigned char sent[LARGE], received[LARGE];
    uint64_t region, request, count = 99;
    nemesia_remote_key key;
    unsigned char *base = NULL;
    void *memory = NULL;
    double half = 0.5, sum = 0;
    int64_t zero = 0, one = 1, old = -1;
    int32_t path = 99;
    size_t at;
    OK(nemesia_endpoint_allocate(endpoint, LARGE + 16 + 80, NEMESIA_ACCESS_READ_WRITE, &memory, &region));
    base = memory;
    key = exchange(region);
    OK(nemesia_endpoint_path(endpoint, &key, &path));
    CHECK(path == NEMESIA_PATH_DIRECT || (path == NEMESIA_PATH_PACKETS && *nemesia_last_error_message() != 0));
    for (at = 0; at < LARGE; at++) sent[at] = (unsigned char)(at * 7 + (size_t)rank);
    OK(nemesia_endpoint_iput(endpoint, &key, 0, sent, LARGE, NEMESIA_RMA_NOTIFY, &request));
    wait_for(request);
    OK(nemesia_endpoint_inotified(endpoint, region, 1, &request));
    wait_for(request);
    OK(nemesia_endpoint_notifications(endpoint, region, &count));
    CHECK(count == 1);
    for (at = 0; at < LARGE; at++) CHECK(base[at] == (unsigned char)(at * 7 + (size_t)peer));
    OK(nemesia_endpoint_iget(endpoint, &key, 0, LARGE, received, &request));
    wait_for(request);
    OK(nemesia_endpoint_flush(endpoint, NEMESIA_ALL_RANKS));
    CHECK(memcmp(sent, received, LARGE) == 0);
    OK(nemesia_endpoint_ifetch(endpoint, &key, LARGE, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, &one, &old, &request));
    wait_for(request);
    CHECK(old == 0);
    OK(nemesia_endpoint_icompare_swap(endpoint, &key, LARGE, NEMESIA_TYPE_I64, NEMESIA_COMPARE_EQUAL, &one, &zero,
                                      &old, &request));
    wait_for(request);
    CHECK(old == 1);
    OK(nemesia_endpoint_ifetch(endpoint, &key, LARGE, NEMESIA_TYPE_I64, NEMESIA_OP_NOTHING, &one, &old, &request));
    wait_for(request);
    CHECK(old == 0);
    fetch_arrays(&key);
    for (at = 0; at < 100; at++) {
        OK(nemesia_endpoint_iaccumulate(endpoint, &key, LARGE + 8, NEMESIA_TYPE_F64, NEMESIA_OP_SUM, &half, 1,
                                        at % 2 == 0 ? NEMESIA_RMA_DELIVERED : 0, &request));
        wait_for(request);
    }
    OK(nemesia_endpoint_fence(endpoint, peer));
    OK(nemesia_endpoint_flush(endpoint, peer));
    barrier();
    memcpy(&sum, base + LARGE + 8, sizeof sum);
    CHECK(sum == 50);
    OK(nemesia_endpoint_unexpose(endpoint, region));
    GIVES(NEMESIA_ERR_REGION, nemesia_endpoint_unexpose(endpoint, region));
}

/* Each rank sends from its allocated memory and receives into it, at odd offsets, with guard bytes around. */
static void messages_in_allocated_memory(void) {
    static const uint32_t accesses[] = {NEMESIA_ACCESS_READ, NEMESIA_ACCESS_READ_WRITE};
    const size_t bytes = 3 << 20, half = 4 << 20;
    uint64_t region, receive, send;
    void *memory = NULL;
    size_t turn, at;
    for (turn = 0; turn < 2; turn++) {
        unsigned char *out, *in;
        OK(nemesia_endpoint_allocate(endpoint, 2 * half, accesses[turn], &memory, &region));
        out = (unsigned char *)memory + 3;
        in = (unsigned char *)memory + half + 5;
        for (at = 0; at < bytes; at++) out[at] = (unsigned char)(at * 11 + at / 256 + (size_t)rank);
        in[-1] = in[bytes] = 0xa5;
        OK(nemesia_endpoint_irecv(endpoint, peer, 77, 0, bytes, in, &receive));
        OK(nemesia_endpoint_isend(endpoint, peer, 77, out, bytes, &send));
        /* The region is freed when both messages are complete; its address is not used after that. */
        if (turn == 1) {
            wait_for(receive);
            wait_for(send);
            for (at = 0; at < bytes; at++) CHECK(in[at] == (unsigned char)(at * 11 + at / 256 + (size_t)peer));
            CHECK(in[-1] == 0xa5 && in[bytes] == 0xa5);
            OK(nemesia_endpoint_unexpose(endpoint, region));
        } else {
            OK(nemesia_endpoint_unexpose(endpoint, region));
            wait_for(receive);
            wait_for(send);
        }
        barrier();
    }
}

static void refusals(void) {
    static int64_t memory[4];
    uint64_t region = 99, request = 99;
    nemesia_remote_key key, forged;
    int32_t path = 99;
    int64_t value = 1;
    OK(nemesia_endpoint_expose(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ, &region));
    key = exchange(region);
    OK(nemesia_endpoint_path(endpoint, &key, &path));
    CHECK(path == NEMESIA_PATH_PACKETS && strstr(nemesia_last_error_message(), "allocated") != NULL);
    GIVES(NEMESIA_ERR_ACCESS, nemesia_endpoint_iput(endpoint, &key, 0, &value, 8, 0, &request));
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_iget(endpoint, &key, 25, 8, &value, &request));
    GIVES(NEMESIA_ERR_ACCESS, nemesia_endpoint_ifetch(endpoint, &key, 0, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, &value,
                                                      &value, &request));
    GIVES(NEMESIA_ERR_ARGUMENT,
          nemesia_endpoint_ifetch(endpoint, &key, 0, 10, NEMESIA_OP_SUM, &value, &value, &request));
    GIVES(NEMESIA_ERR_ARGUMENT,
          nemesia_endpoint_ifetch(endpoint, &key, 0, NEMESIA_TYPE_I64, 12, &value, &value, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_iput(endpoint, NULL, 0, &value, 8, 0, &request));
    forged = key;
    forged.known[0] = 77;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_iput(endpoint, &forged, 0, &value, 8, 0, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_expose(endpoint, memory, sizeof memory, 4, &region));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_expose(endpoint, NULL, 1, NEMESIA_ACCESS_READ, &region));
    GIVES(NEMESIA_ERR_REGION, nemesia_endpoint_remote_key(endpoint, 12345, &forged));
    GIVES(NEMESIA_ERR_REGION, nemesia_endpoint_inotified(endpoint, 12345, 1, &request));
    CHECK(request == 99 && memory[0] == 0);
    /* Only the target can detect these: the key of another region, and more access than granted. */
    forged = key;
    forged.key ^= 1;
    OK(nemesia_endpoint_iget(endpoint, &forged, 0, 8, &value, &request));
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    CHECK(nemesia_last_error_rank() == peer);
    forged = key;
    forged.known[2] = NEMESIA_ACCESS_READ_WRITE;
    OK(nemesia_endpoint_iput(endpoint, &forged, 0, &value, 8, 0, &request));
    wait_for(request);
    GIVES(NEMESIA_ERR_ACCESS, nemesia_endpoint_flush(endpoint, peer));
    OK(nemesia_endpoint_flush(endpoint, peer));
    barrier();
    CHECK(memory[0] == 0);
}

/* Small types, logical operations, comparisons, and the query. */
static void atomics(void) {
    static const uint32_t types[] = {NEMESIA_TYPE_I8, NEMESIA_TYPE_U8, NEMESIA_TYPE_I16, NEMESIA_TYPE_U16};
    static uint64_t memory[8];
    uint64_t region, request = 99;
    uint32_t type, op;
    nemesia_remote_key key;
    bool is = false;
    OK(nemesia_endpoint_expose(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE, &region));
    key = exchange(region);
    for (type = 0; type < 12; type++) {
        for (op = 0; op < 30; op++) {
            const bool exists = type < 10 && (op < 12 || (op >= NEMESIA_COMPARE_EQUAL && op <= NEMESIA_COMPARE_MASKED));
            const bool integer = type != NEMESIA_TYPE_F32 && type != NEMESIA_TYPE_F64;
            const bool bits = (op >= NEMESIA_OP_AND && op <= NEMESIA_OP_XOR) || op == NEMESIA_COMPARE_MASKED;
            OK(nemesia_atomic_supported(type, op, &is));
            CHECK(is == (exists && (integer || !bits)));
        }
    }
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_atomic_supported(0, 0, NULL));
    for (type = 0; type < 4; type++) {
        /* Each value lies in a word of its own, between bytes that stay. */
        const size_t width = type < 2 ? 1 : 2;
        const uint64_t at = 8 * (uint64_t)type + 4;
        int16_t two = 2, old = 0x7777, seven = 7;
        OK(nemesia_endpoint_iaccumulate(endpoint, &key, at, types[type], NEMESIA_OP_SUM, &two, 1, NEMESIA_RMA_DELIVERED,
                                        &request));
        wait_for(request);
        OK(nemesia_endpoint_ifetch(endpoint, &key, at, types[type], NEMESIA_OP_LOGICAL_AND, &seven, &old, &request));
        wait_for(request);
        CHECK((width == 1 ? old & 0xff : old) == 2);
        CHECK(width == 2 || (old & 0xff00) == 0x7700);
        /* 1 < the value 1? No. 0 < 1? Yes. */
        old = 0;
        two = 1;
        OK(nemesia_endpoint_icompare_swap(endpoint, &key, at, types[type], NEMESIA_COMPARE_LESS, &two, &seven, &old,
                                          &request));
        wait_for(request);
        CHECK(old == 1);
        two = 0;
        OK(nemesia_endpoint_icompare_swap(endpoint, &key, at, types[type], NEMESIA_COMPARE_LESS, &two, &seven, &old,
                                          &request));
        wait_for(request);
        CHECK(old == 1);
        OK(nemesia_endpoint_get(endpoint, &key, at, width, &old));
        CHECK(old == 7);
    }
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_icompare_swap(endpoint, &key, 0, NEMESIA_TYPE_I8, NEMESIA_OP_SUM, &is,
                                                               &is, &is, &request));
    GIVES(NEMESIA_ERR_UNDEFINED, nemesia_endpoint_icompare_swap(endpoint, &key, 0, NEMESIA_TYPE_F64,
                                                                NEMESIA_COMPARE_MASKED, memory, memory, memory + 7,
                                                                &request));
    barrier();
    for (type = 0; type < 4; type++) CHECK(memory[type] == (uint64_t)7 << 32);
}

/* Calls that wait, and operations that are complete at the owner: a message that follows proves it. */
static void blocking(void) {
    static unsigned char memory[LARGE], sent[LARGE], received[LARGE];
    uint64_t region, request = 99, count = 0;
    nemesia_remote_key key, forged;
    int64_t one = 1;
    size_t at;
    int round;
    OK(nemesia_endpoint_expose(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE, &region));
    key = exchange(region);
    for (round = 0; round < 5; round++) {
        for (at = 0; at < LARGE; at++) sent[at] = (unsigned char)(at * 5 + (size_t)(rank + round));
        OK(nemesia_endpoint_put(endpoint, &key, 0, sent, LARGE, NEMESIA_RMA_NOTIFY | NEMESIA_RMA_DELIVERED));
        barrier();
        for (at = 0; at < LARGE; at++) CHECK(memory[at] == (unsigned char)(at * 5 + (size_t)(peer + round)));
        OK(nemesia_endpoint_notifications(endpoint, region, &count));
        CHECK(count == (uint64_t)round + 1);
        OK(nemesia_endpoint_get(endpoint, &key, 0, LARGE, received));
        CHECK(memcmp(sent, received, LARGE) == 0);
        barrier();
    }
    OK(nemesia_endpoint_put(endpoint, &key, 0, NULL, 0, 0));
    OK(nemesia_endpoint_get(endpoint, &key, 0, 0, NULL));
    /* The call reports what its owner refuses, and a flush does not repeat it. */
    forged = key;
    forged.key ^= 1;
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_put(endpoint, &forged, 0, sent, LARGE, NEMESIA_RMA_DELIVERED));
    CHECK(nemesia_last_error_rank() == peer);
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_get(endpoint, &forged, 0, 8, received));
    OK(nemesia_endpoint_iaccumulate(endpoint, &forged, 0, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, &one, 1,
                                    NEMESIA_RMA_DELIVERED, &request));
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    OK(nemesia_endpoint_flush(endpoint, peer));
    OK(nemesia_endpoint_put(endpoint, &forged, 0, sent, 8, 0));
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_flush(endpoint, peer));
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_put(endpoint, &key, 1, sent, LARGE, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_put(endpoint, &key, 0, sent, 8, 4));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_put(endpoint, NULL, 0, sent, 8, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_put(endpoint, &key, 0, NULL, 8, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_get(endpoint, &key, 0, 8, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_iaccumulate(endpoint, &key, 0, NEMESIA_TYPE_I64, NEMESIA_OP_SUM, &one,
                                                             1, NEMESIA_RMA_NOTIFY, &request));
    barrier();
}

/* Regions by a chosen key, without any exchange of keys, and by address. */
static void keys(void) {
    static int64_t memory[8], other[8];
    uint64_t region = 99, second = 99, request = 99, address = 0;
    int64_t value = 0;
    nemesia_remote_key key = {0};
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_expose_as(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE,
                                                           4, 0, &region));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_expose_as(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE,
                                                           0, 42, &region));
    OK(nemesia_endpoint_expose_as(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE, NEMESIA_EXPOSE_KEY, 42,
                                  &region));
    GIVES(NEMESIA_ERR_KEY_IN_USE, nemesia_endpoint_expose_as(endpoint, other, sizeof other, NEMESIA_ACCESS_READ,
                                                             NEMESIA_EXPOSE_KEY, 42, &second));
    CHECK(second == 99 && strstr(nemesia_last_error_message(), "0x2a") != NULL);
    OK(nemesia_endpoint_expose_as(endpoint, other, sizeof other, NEMESIA_ACCESS_READ_WRITE,
                                  NEMESIA_EXPOSE_KEY | NEMESIA_EXPOSE_BY_ADDRESS, 43, &second));
    barrier();
    key.rank = peer;
    key.key = 42;
    value = 100 + rank;
    OK(nemesia_endpoint_iput(endpoint, &key, 8, &value, 8, 0, &request));
    wait_for(request);
    OK(nemesia_endpoint_flush(endpoint, peer));
    barrier();
    CHECK(memory[1] == 100 + peer && memory[0] == 0 && memory[2] == 0);
    /* Only the owner knows how long it is. */
    OK(nemesia_endpoint_iget(endpoint, &key, sizeof memory, 8, &value, &request));
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    key.rank = 7;
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_iget(endpoint, &key, 0, 8, &value, &request));
    key.rank = -1;
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_iget(endpoint, &key, 0, 8, &value, &request));
    /* By address. */
    address = (uint64_t)(uintptr_t)&other[3];
    OK(nemesia_endpoint_send(endpoint, peer, 5, &address, sizeof address));
    OK(nemesia_endpoint_recv(endpoint, peer, 5, 0, sizeof address, &address, NULL));
    key.rank = peer;
    key.key = 43;
    value = 200 + rank;
    OK(nemesia_endpoint_iput(endpoint, &key, address, &value, 8, 0, &request));
    wait_for(request);
    OK(nemesia_endpoint_flush(endpoint, peer));
    barrier();
    CHECK(other[3] == 200 + peer && other[2] == 0 && other[4] == 0);
    OK(nemesia_endpoint_iget(endpoint, &key, 8, 8, &value, &request));
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    barrier();
    /* A chosen key names what is exposed now. */
    OK(nemesia_endpoint_unexpose(endpoint, region));
    OK(nemesia_endpoint_unexpose(endpoint, second));
    other[0] = 300 + rank;
    OK(nemesia_endpoint_expose_as(endpoint, other, sizeof other, NEMESIA_ACCESS_READ, NEMESIA_EXPOSE_KEY, 42, &region));
    barrier();
    key.key = 42;
    OK(nemesia_endpoint_iget(endpoint, &key, 0, 8, &value, &request));
    wait_for(request);
    CHECK(value == 300 + peer);
    key.key = 43;
    OK(nemesia_endpoint_iget(endpoint, &key, 0, 8, &value, &request));
    GIVES(NEMESIA_ERR_KEY, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    barrier();
    OK(nemesia_endpoint_unexpose(endpoint, region));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"active", active}, {"one-sided", one_sided},
                 {"messages-in-allocated-memory", messages_in_allocated_memory},
                 {"keys", keys},
                 {"atomics", atomics},
                 {"blocking", blocking},
                 {"refusals", refusals}};
    size_t at;
    OK(nemesia_endpoint_open(NULL, &endpoint));
    OK(nemesia_endpoint_rank(endpoint, &rank));
    CHECK(argc == 2);
    peer = 1 - rank;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (strcmp(argv[1], cases[at].name) == 0) {
            cases[at].run();
            barrier();
            OK(nemesia_endpoint_close(endpoint));
            return EXIT_SUCCESS;
        }
    }
    fail_at(__FILE__, __LINE__, "no such case");
    return EXIT_FAILURE;
}
