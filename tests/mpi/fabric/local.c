/* Calls that end without the peer: it makes no progress until it is told, and no call returns -FI_EAGAIN before. */
#include "sides.h"

enum { MANY = 100000, FEWER = 20000, LONG = 4000, OFFSETS = 251 };

static unsigned char bytes[LONG + OFFSETS], in[LONG];

/* Lets the other process go on. */
static void tell(void) {
    CHECK(send(other, "t", 1, MSG_NOSIGNAL) == 1);
}

/* Waits until the other process tells, and makes no progress. */
static void await(void) {
    struct pollfd it = {.fd = other, .events = POLLIN};
    char byte;
    CHECK(poll(&it, 1, 1000 * LIMIT) == 1);
    CHECK(recv(other, &byte, 1, 0) == 1 && byte == 't');
}

/* Receives a message of this tag, from the oldest on. */
static void receive(struct side *it, size_t length, uint64_t tag, const unsigned char *expected) {
    OK(fi_trecv(it->ep, in, LONG, NULL, FI_ADDR_UNSPEC, tag, 0, in));
    const struct fi_cq_tagged_entry entry = completed(it, in);
    CHECK(entry.len == length && entry.tag == tag && memcmp(in, expected, length) == 0);
}

/* Connects the two, so that it is the peer's silence that is tested. */
static void connect_both(struct side *it) {
    if (rank == 0) POSTED(it, fi_tinject(it->ep, bytes, 1, it->peer, ~0ull));
    else receive(it, 1, ~0ull, bytes);
    meet(it);
}

/* Messages of a length: injected if they are short enough, else from their own memory. */
static void send_to_silent(size_t length, int count, int is_connected) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    int ended = 0;
    filled(bytes, sizeof bytes, 3);
    open_side(&it, &(struct options){0});
    if (is_connected) connect_both(&it);
    const int is_short = length <= it.info->tx_attr->inject_size;
    for (int at = 0; rank == 0 && at < count; at++) {
        const unsigned char *from = bytes + at % OFFSETS;
        unsigned char once[LONG];
        const uint64_t tag = at % 3;
        /* None overtakes another one, whichever call it came by. */
        if (!is_short || at % 1000 == 999) {
            OK(fi_tsend(it.ep, from, length, NULL, it.peer, tag, NULL));
            continue;
        }
        ended++;
        memcpy(once, from, length);
        if (at % 2 == 0) OK(fi_tinject(it.ep, once, length, it.peer, tag));
        else OK(fi_tinjectdata(it.ep, once, length, (uint64_t)at, it.peer, tag));
        memset(once, 0xee, length);
    }
    if (rank == 0) tell();
    else await();
    for (int at = 0; rank == 1 && at < count; at++) receive(&it, length, at % 3, bytes + at % OFFSETS);
    for (; rank == 0 && ended < count; ended++) {
        RETURNS(next_from(&it, &entry, NULL), 1);
        CHECK(entry.flags == (FI_SEND | FI_TAGGED));
    }
    meet(&it);
    if (rank == 0) RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
    close_side(&it);
}

/* In the short form, fewer of those that take long. */
static int many(void) {
    return getenv("NEMESIA_QUICK") == NULL ? MANY : FEWER;
}

static void short_messages(void) { send_to_silent(8, MANY, 1); }
static void odd_messages(void) { send_to_silent(233, many(), 1); }
static void long_messages(void) { send_to_silent(LONG, many(), 1); }
static void unconnected(void) { send_to_silent(8, many(), 0); }

/* Injects messages for a peer until there is no room for copies. Returns how many there were. */
static int fill_up(struct side *it, fi_addr_t to) {
    const size_t most = it->info->tx_attr->inject_size;
    ssize_t sent;
    int count = -1;
    do {
        count++;
        sent = fi_tinject(it->ep, bytes, most, to, 1);
    } while (sent == 0);
    RETURNS(sent, -FI_EAGAIN);
    return count;
}

/* The memory for copies has a bound, which 100,000 of the longest messages do not reach. At the bound another peer is
 * still served. The memory is given back when the messages end: here because the silent peer closes its endpoint. */
static void bound(void) {
    enum { OTHERS = 100 };
    struct side it[2];
    struct fi_cq_tagged_entry entry;
    fi_addr_t second;
    int failures = 0;
    filled(bytes, sizeof bytes, 5);
    for (int at = 0; at < 2; at++) open_side(&it[at], &(struct options){0});
    RETURNS(fi_av_insert(it[0].av, it[1].others, 1, &second, 0, NULL), 1);
    connect_both(&it[0]);
    if (rank == 0) {
        CHECK(fill_up(&it[0], it[0].peer) >= MANY);
        for (int at = 0; at < OTHERS; at++) OK(fi_tinject(it[0].ep, bytes + at, 8, second, 2));
        tell();
    } else {
        await();
        for (int at = 0; at < OTHERS; at++) receive(&it[1], 8, 2, bytes + at);
        close_side(&it[0]);
    }
    meet(&it[rank]);
    for (; rank == 0 && failures < MANY; failures++) {
        struct fi_cq_err_entry error = {0};
        RETURNS(next_from(&it[0], &entry, NULL), -FI_EAVAIL);
        RETURNS(fi_cq_readerr(it[0].cq, &error, 0), 1);
        RETURNS(error.err, FI_ECONNABORTED);
    }
    if (rank == 0) {
        CHECK(fill_up(&it[0], second) >= MANY);
        tell();
    } else {
        await();
    }
    for (int at = rank; at < 2; at++) close_side(&it[at]);
}

/* An endpoint that is closed sends what it has kept. */
static void closed(void) {
    enum { COUNT = 5000 };
    struct side it;
    open_side(&it, &(struct options){0});
    connect_both(&it);
    for (unsigned at = 0; rank == 0 && at < COUNT; at++) OK(fi_tinject(it.ep, &at, sizeof at, it.peer, at));
    if (rank == 0) tell();
    else await();
    for (unsigned at = 0; rank == 1 && at < COUNT; at++) receive(&it, sizeof at, at, (const unsigned char *)&at);
    close_side(&it);
}

/* If the peer dies, each message that is kept for it ends with an error, and what follows, too. */
static void peer_dies(void) {
    enum { COUNT = 5000 };
    struct side it;
    struct fi_cq_err_entry error;
    struct fi_cq_tagged_entry entry;
    int value = 4711, failures = 0;
    open_side(&it, &(struct options){0});
    connect_both(&it);
    if (rank == 1) {
        await();
        _exit(0);
    }
    for (int at = 0; at < COUNT; at++) OK(fi_tinject(it.ep, &at, sizeof at, it.peer, 1));
    OK(fi_tsend(it.ep, &value, sizeof value, NULL, it.peer, 1, &value));
    tell();
    do {
        RETURNS(next_from(&it, &entry, NULL), -FI_EAVAIL);
        memset(&error, 0, sizeof error);
        RETURNS(fi_cq_readerr(it.cq, &error, 0), 1);
        RETURNS(error.err, FI_ECONNABORTED);
        failures++;
    } while (error.op_context == NULL);
    CHECK(error.op_context == &value && failures > 1 && failures <= COUNT + 1);
    CHECK(fi_tinject(it.ep, &value, sizeof value, it.peer, 1) < 0);
    close_side(&it);
}

static const struct test TESTS[] = {
    {"short_messages", short_messages, 2}, {"odd_messages", odd_messages, 2}, {"long_messages", long_messages, 2},
    {"unconnected", unconnected, 2}, {"bound", bound, 2}, {"closed", closed, 2}, {"peer_dies", peer_dies, 2},
};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }
