/* Messages with and without tags: fabtests' groups rdm, bw, inject_test, cq_data, multi_recv, recv_cancel,
 * rdm_tagged_peek, unexpected_msg, rdm_cntr_pingpong, rdm_tagged_pingpong, loopback, multi_ep, av_xfer. */
#include "sides.h"

static const size_t SIZES[] = {0, 1, 7, 8, 63, 64, 65, 1000, 4095, 4096, 4097, 16385, 65537, 300001, 2097155};
enum { SIZES_COUNT = sizeof SIZES / sizeof *SIZES, LONGEST = 2097155 };

static unsigned char *new_bytes(size_t length) {
    unsigned char *bytes = malloc(length + 1);
    CHECK(bytes != NULL);
    memset(bytes, 0x55, length + 1);
    return bytes;
}

/* Each size there and back, with the calls of one kind. */
static void ping_pong(int tagged) {
    struct side it;
    unsigned char *out = new_bytes(LONGEST), *in = new_bytes(LONGEST);
    open_side(&it, &(struct options){0});
    for (unsigned at = 0; at < 2 * SIZES_COUNT; at++) {
        const size_t length = SIZES[at % SIZES_COUNT];
        const uint64_t tag = 0xfedcba9876543210u + at;
        if (tagged) OK(fi_trecv(it.ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, tag, 0, in));
        else OK(fi_recv(it.ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, in));
        for (int turn = 0; turn < 2; turn++) {
            if (turn == rank) {
                filled(out, length, at + (unsigned)rank);
                if (tagged) POSTED(&it, fi_tsend(it.ep, out, length, NULL, it.peer, tag, out));
                else POSTED(&it, fi_send(it.ep, out, length, NULL, it.peer, out));
                const struct fi_cq_tagged_entry sent = completed(&it, out);
                CHECK(sent.flags & FI_SEND && sent.flags & (tagged ? FI_TAGGED : FI_MSG));
            } else {
                const struct fi_cq_tagged_entry entry = completed(&it, in);
                CHECK(entry.flags == (FI_RECV | (tagged ? FI_TAGGED : FI_MSG)));
                CHECK(entry.len == length && (!tagged || entry.tag == tag));
                CHECK(is_filled(in, length, at + (unsigned)!rank));
            }
        }
    }
    meet(&it);
    close_side(&it);
    free(out), free(in);
}

static void untagged(void) { ping_pong(0); }
static void tagged(void) { ping_pong(1); }

/* A tag matches where no bit that counts differs, in the order of the receives. */
static void tags_match_by_mask(void) {
    struct side it;
    int value[4] = {-1, -1, -1, -1};
    open_side(&it, &(struct options){0});
    if (rank == 0) {
        OK(fi_trecv(it.ep, &value[0], sizeof(int), NULL, FI_ADDR_UNSPEC, 0xab00, 0xff, &value[0]));
        OK(fi_trecv(it.ep, &value[1], sizeof(int), NULL, FI_ADDR_UNSPEC, 0, ~0ull, &value[1]));
        OK(fi_trecv(it.ep, &value[2], sizeof(int), NULL, FI_ADDR_UNSPEC, 0xab42, 0, &value[2]));
        meet(&it);
        for (int at = 0; at < 3; at++) {
            struct fi_cq_tagged_entry entry;
            RETURNS(next_from(&it, &entry, NULL), 1);
            CHECK(entry.len == sizeof(int));
        }
        CHECK(value[0] == 2 && value[1] == 1 && value[2] == 3);
    } else {
        meet(&it);
        for (int at = 1; at <= 3; at++) {
            const uint64_t tag = at == 1 ? 0x1100 : at == 2 ? 0xab01 : 0xab42;
            POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, tag));
        }
    }
    meet(&it);
    close_side(&it);
}

/* The bytes of an injected message may change at once, also where they cannot leave at once; nothing reports it. */
static void inject(void) {
    enum { COUNT = 3000 };
    struct side it;
    struct fi_cq_tagged_entry entry;
    unsigned char *bytes;
    open_side(&it, &(struct options){0});
    const size_t most = it.info->tx_attr->inject_size;
    CHECK(most >= 8);
    bytes = new_bytes(most + 1);
    if (rank == 0) {
        for (unsigned at = 0; at < COUNT; at++) {
            filled(bytes, most, at);
            if (at % 4 == 0) POSTED(&it, fi_inject(it.ep, bytes, most, it.peer));
            if (at % 4 == 1) POSTED(&it, fi_tinject(it.ep, bytes, most, it.peer, at));
            if (at % 4 == 2) POSTED(&it, fi_injectdata(it.ep, bytes, most, at, it.peer));
            if (at % 4 == 3) POSTED(&it, fi_tinjectdata(it.ep, bytes, most, at, it.peer, at));
            memset(bytes, 0xaa, most);
        }
        meet(&it);
        RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
        /* Longer than what is offered: refused, or sent whole, but not cut. */
        CHECK(fi_inject(it.ep, bytes, most + 1, it.peer) < 0);
    } else {
        for (unsigned at = 0; at < COUNT; at++) {
            if (at % 2 == 0) OK(fi_recv(it.ep, bytes, most, NULL, FI_ADDR_UNSPEC, bytes));
            else OK(fi_trecv(it.ep, bytes, most, NULL, FI_ADDR_UNSPEC, at, 0, bytes));
            entry = completed(&it, bytes);
            CHECK(entry.len == most && is_filled(bytes, most, at));
            CHECK(!(entry.flags & FI_REMOTE_CQ_DATA) == (at % 4 < 2));
            CHECK(at % 4 < 2 || entry.data == at);
        }
        meet(&it);
    }
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* Immediate data comes with messages of all sizes. */
static void immediate(void) {
    struct side it;
    unsigned char *bytes = new_bytes(LONGEST);
    open_side(&it, &(struct options){0});
    CHECK(it.info->domain_attr->cq_data_size >= 4);
    for (unsigned at = 0; at < 2 * SIZES_COUNT; at++) {
        const uint64_t value = 0x8000000000000001u + at;
        const size_t length = SIZES[at / 2];
        if (rank == 0) {
            filled(bytes, length, at);
            if (at % 2) POSTED(&it, fi_senddata(it.ep, bytes, length, NULL, value, it.peer, bytes));
            else POSTED(&it, fi_tsenddata(it.ep, bytes, length, NULL, value, it.peer, at, bytes));
            completed(&it, bytes);
        } else {
            if (at % 2) OK(fi_recv(it.ep, bytes, LONGEST, NULL, FI_ADDR_UNSPEC, bytes));
            else OK(fi_trecv(it.ep, bytes, LONGEST, NULL, FI_ADDR_UNSPEC, at, 0, bytes));
            const struct fi_cq_tagged_entry entry = completed(&it, bytes);
            CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.data == value && entry.len == length);
            CHECK(is_filled(bytes, length, at));
        }
    }
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* Lists of runs, empty ones among them. */
static void lists(void) {
    enum { LENGTH = 300001 };
    struct side it;
    unsigned char *bytes = new_bytes(LENGTH);
    open_side(&it, &(struct options){0});
    const size_t limit = it.info->tx_attr->iov_limit;
    CHECK(limit >= 2 && it.info->rx_attr->iov_limit == limit);
    for (size_t runs = 1; runs <= limit; runs++) {
        struct iovec list[32];
        CHECK(limit < 32);
        for (size_t at = 0; at < runs; at++) {
            const size_t from = at * LENGTH / runs, to = (at + 1) * LENGTH / runs;
            list[at] = (struct iovec){bytes + from, at == 1 ? 0 : to - from};
        }
        const size_t gap = runs > 1 ? 2 * LENGTH / runs - LENGTH / runs : 0;
        if (rank == 0) {
            filled(bytes, LENGTH, (unsigned)runs);
            POSTED(&it, fi_sendv(it.ep, list, NULL, runs, it.peer, bytes));
            completed(&it, bytes);
        } else {
            memset(bytes, 0x55, LENGTH);
            OK(fi_recvv(it.ep, list, NULL, runs, FI_ADDR_UNSPEC, bytes));
            CHECK(completed(&it, bytes).len == LENGTH - gap);
            if (runs == 1) CHECK(is_filled(bytes, LENGTH, 1));
            else CHECK(is_filled(bytes, LENGTH / runs, (unsigned)runs) && bytes[LENGTH / runs] == 0x55);
        }
    }
    struct iovec list[32] = {{bytes, 1}};
    CHECK(fi_sendv(it.ep, list, NULL, limit + 1, it.peer, bytes) == -FI_EINVAL);
    CHECK(fi_tsendv(it.ep, NULL, NULL, 2, it.peer, 0, bytes) == -FI_EINVAL);
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* Each format has its own entries. */
static void formats(void) {
    const enum fi_cq_format all[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED};
    const size_t bytes[] = {sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry),
                            sizeof(struct fi_cq_tagged_entry)};
    for (size_t at = 0; at < 4; at++) {
        struct side it;
        uint64_t value[2] = {1, 2}, in[2] = {0, 0};
        union {
            struct fi_cq_tagged_entry entry;
            unsigned char bytes[3 * sizeof(struct fi_cq_tagged_entry)];
        } place;
        open_side(&it, &(struct options){.format = all[at]});
        memset(&place, 0xee, sizeof place);
        for (int turn = 0; turn < 2; turn++) {
            if (rank == 0) OK(fi_trecv(it.ep, &in[turn], 8, NULL, FI_ADDR_UNSPEC, 7, 0, &in[turn]));
        }
        meet(&it);
        for (int turn = 0; turn < 2; turn++) {
            if (rank == 1) POSTED(&it, fi_tinjectdata(it.ep, &value[turn], 8, 99, it.peer, 7));
        }
        if (rank == 0) {
            const double end = now() + LIMIT;
            for (ssize_t done = 0; done < 2;) {
                const ssize_t count = fi_cq_read(it.cq, place.bytes + (size_t)done * bytes[at], (size_t)(2 - done));
                CHECK(count > 0 || count == -FI_EAGAIN);
                if (count > 0) done += count;
                CHECK(now() < end);
            }
            for (int turn = 0; turn < 2; turn++) {
                struct fi_cq_tagged_entry entry;
                memset(&entry, 0, sizeof entry);
                memcpy(&entry, place.bytes + (size_t)turn * bytes[at], bytes[at]);
                CHECK(entry.op_context == &in[turn] && in[turn] == value[turn]);
                if (at >= 1) CHECK(entry.len == 8 && entry.flags & FI_RECV);
                if (at >= 2) CHECK(entry.data == 99);
                if (at >= 3) CHECK(entry.tag == 7);
            }
            CHECK(place.bytes[2 * bytes[at]] == 0xee);
        }
        meet(&it);
        close_side(&it);
    }
}

/* Only operations with FI_COMPLETION are reported, and errors. */
static void selective(void) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    int value[4] = {0};
    open_side(&it, &(struct options){.cq_flags = FI_SELECTIVE_COMPLETION});
    const struct iovec run[4] = {{&value[0], 4}, {&value[1], 4}, {&value[2], 4}, {&value[3], 4}};
    for (int at = 0; at < 4; at++) {
        const fi_addr_t addr = rank == 0 ? it.peer : FI_ADDR_UNSPEC;
        const struct fi_msg_tagged message = {.msg_iov = &run[at], .iov_count = 1, .addr = addr, .tag = (uint64_t)at,
                                              .context = &value[at]};
        const uint64_t flags = at == 2 ? FI_COMPLETION : 0;
        if (rank == 0) POSTED(&it, fi_tsendmsg(it.ep, &message, flags));
        else OK(fi_trecvmsg(it.ep, &message, flags));
    }
    entry = completed(&it, &value[2]);
    meet(&it);
    RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
    /* An error is reported without the flag. */
    OK(fi_trecv(it.ep, value, sizeof value, NULL, FI_ADDR_UNSPEC, 77, 0, value));
    OK(fi_cancel(&it.ep->fid, value));
    failed(&it, value, FI_ECANCELED);
    meet(&it);
    close_side(&it);
}

/* A message that is longer than its buffer: an error with both lengths, and the bytes before stay untouched. */
static void truncated(void) {
    const size_t lengths[] = {100, 5000, 300000};
    struct side it;
    unsigned char *bytes = new_bytes(300000);
    open_side(&it, &(struct options){0});
    for (unsigned at = 0; at < 3; at++) {
        if (rank == 0) {
            filled(bytes, lengths[at], at);
            POSTED(&it, fi_tsend(it.ep, bytes, lengths[at], NULL, it.peer, at, bytes));
            completed(&it, bytes);
        } else {
            memset(bytes, 0x55, 300000);
            OK(fi_trecv(it.ep, bytes, 64, NULL, FI_ADDR_UNSPEC, at, 0, bytes));
            const struct fi_cq_err_entry entry = failed(&it, bytes, FI_ETRUNC);
            CHECK(entry.len == 64 && entry.olen == lengths[at] - 64 && entry.tag == at && entry.flags & FI_RECV);
            CHECK(bytes[64] == 0x55);
        }
    }
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* A buffer takes message after message, until fewer bytes are left than the option says. */
static void multi_receive(void) {
    enum { COUNT = 500, ROOM = 4096, LEAST = 512 };
    struct side it;
    unsigned char *room[2] = {new_bytes(ROOM), new_bytes(ROOM)}, out[LEAST];
    size_t least = LEAST, length = sizeof least;
    open_side(&it, &(struct options){0});
    OK(fi_setopt(&it.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    least = 0;
    OK(fi_getopt(&it.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length));
    CHECK(least == LEAST);
    if (rank == 0) {
        for (unsigned at = 0; at < COUNT; at++) {
            POSTED(&it, fi_send(it.ep, filled(out, at % LEAST, at), at % LEAST, NULL, it.peer, out));
            completed(&it, out);
        }
    } else {
        int open = 0;
        for (unsigned at = 0; at < COUNT || open > 0;) {
            struct fi_cq_tagged_entry entry;
            while (open < 2 && at < COUNT) {
                const struct iovec run = {room[open], ROOM};
                const struct fi_msg message = {.msg_iov = &run, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
                                               .context = room[open]};
                OK(fi_recvmsg(it.ep, &message, FI_MULTI_RECV));
                open++;
            }
            if (at == COUNT) {
                /* Withdrawn: the buffers are free, and say so. */
                OK(fi_cancel(&it.ep->fid, room[0]));
                OK(fi_cancel(&it.ep->fid, room[1]));
            }
            const ssize_t count = next_from(&it, &entry, NULL);
            if (count == -FI_EAVAIL) {
                struct fi_cq_err_entry error = {0};
                RETURNS(fi_cq_readerr(it.cq, &error, 0), 1);
                RETURNS(error.err, FI_ECANCELED);
                CHECK(at == COUNT);
                open--;
                continue;
            }
            if (entry.flags & FI_RECV) {
                const unsigned char *of = entry.op_context;
                CHECK((unsigned char *)entry.buf >= of && (unsigned char *)entry.buf + entry.len <= of + ROOM);
                CHECK(entry.len == at % LEAST && is_filled(entry.buf, entry.len, at));
                at++;
            }
            if (entry.flags & FI_MULTI_RECV) {
                unsigned char *freed = entry.op_context;
                CHECK(freed == room[0] || freed == room[1]);
                if (freed == room[0]) room[0] = room[1], room[1] = freed;
                open--;
            }
        }
    }
    meet(&it);
    close_side(&it);
    free(room[0]), free(room[1]);
}

/* A receive that is withdrawn reports it once; one that matched does not. */
static void cancelled(void) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    int value[100];
    open_side(&it, &(struct options){0});
    for (int at = 0; at < 100; at++) {
        OK(fi_trecv(it.ep, &value[at], 4, NULL, FI_ADDR_UNSPEC, (uint64_t)at, 0, &value[at]));
    }
    for (int at = 0; at < 100; at += 2) {
        OK(fi_cancel(&it.ep->fid, &value[at]));
        failed(&it, &value[at], FI_ECANCELED);
    }
    meet(&it);
    for (int at = 1; at < 100; at += 2) {
        POSTED(&it, fi_tinject(it.ep, &at, 4, it.peer, (uint64_t)at));
        entry = completed(&it, &value[at]);
        CHECK(value[at] == at && entry.tag == (uint64_t)at);
    }
    /* Nothing has this context any more. */
    fi_cancel(&it.ep->fid, &value[1]);
    RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
    meet(&it);
    close_side(&it);
}

static struct fi_cq_tagged_entry look(struct side *it, uint64_t tag, uint64_t ignore, uint64_t flags, void *context) {
    const struct fi_msg_tagged message = {.addr = FI_ADDR_UNSPEC, .tag = tag, .ignore = ignore, .context = context};
    struct fi_cq_tagged_entry entry = {0};
    OK(fi_trecvmsg(it->ep, &message, flags));
    const ssize_t count = next_from(it, &entry, NULL);
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        RETURNS(fi_cq_readerr(it->cq, &error, 0), 1);
        RETURNS(error.err, FI_ENOMSG);
        CHECK(error.op_context == context);
        entry.op_context = NULL;
    } else {
        RETURNS(count, 1);
        CHECK(entry.op_context == context);
    }
    return entry;
}

/* Looks at messages with FI_PEEK; claims some, and receives or discards them. */
static void peeked(void) {
    struct side it;
    unsigned char *bytes = new_bytes(300001);
    struct fi_context2 context;
    open_side(&it, &(struct options){0});
    if (rank == 0) {
        filled(bytes, 300001, 5);
        POSTED(&it, fi_tinjectdata(it.ep, bytes, 40, 17, it.peer, 1));
        POSTED(&it, fi_tinject(it.ep, bytes, 50, it.peer, 2));
        POSTED(&it, fi_tinject(it.ep, bytes, 60, it.peer, 3));
        POSTED(&it, fi_tsend(it.ep, bytes, 300001, NULL, it.peer, 4, bytes));
        meet(&it);
        completed(&it, bytes);
    } else {
        meet(&it);
        const double end = now() + LIMIT;
        CHECK(look(&it, 9, 0, FI_PEEK, &context).op_context == NULL);
        while (look(&it, 4, 0, FI_PEEK, &context).op_context == NULL) CHECK(now() < end);
        struct fi_cq_tagged_entry entry = look(&it, 0, ~0ull, FI_PEEK, &context);
        CHECK(entry.tag == 1 && entry.len == 40 && entry.data == 17 && entry.flags & FI_REMOTE_CQ_DATA);
        /* Claimed: no other receive gets it. */
        entry = look(&it, 0, ~0ull, FI_PEEK | FI_CLAIM, &context);
        CHECK(entry.tag == 1 && look(&it, 1, 0, FI_PEEK, bytes).op_context == NULL);
        const struct iovec run = {bytes, 300001};
        const struct fi_msg_tagged claim = {.msg_iov = &run, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 1,
                                            .context = &context};
        OK(fi_trecvmsg(it.ep, &claim, FI_CLAIM));
        CHECK(completed(&it, &context).len == 40 && is_filled(bytes, 40, 5));
        CHECK(fi_trecvmsg(it.ep, &claim, FI_CLAIM) < 0);
        /* Discarded at once, and after a claim. */
        CHECK(look(&it, 2, 0, FI_PEEK | FI_DISCARD, &context).len == 50);
        CHECK(look(&it, 2, 0, FI_PEEK, &context).op_context == NULL);
        CHECK(look(&it, 3, 0, FI_PEEK | FI_CLAIM, &context).len == 60);
        OK(fi_trecvmsg(it.ep, &claim, FI_CLAIM | FI_DISCARD));
        CHECK(completed(&it, &context).tag == 3);
        /* A long one: its sender completes when it was received. */
        CHECK(look(&it, 4, 0, FI_PEEK | FI_CLAIM, &context).len == 300001);
        OK(fi_trecvmsg(it.ep, &claim, FI_CLAIM));
        CHECK(completed(&it, &context).len == 300001 && is_filled(bytes, 300001, 5));
    }
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* Messages that arrive before their receives, more than any queue has room for; received in the opposite order. */
static void unexpected(void) {
    enum { COUNT = 8000 };
    struct side it;
    open_side(&it, &(struct options){0});
    if (rank == 0) {
        for (unsigned at = 0; at < COUNT; at++) POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, at));
        meet(&it);
    } else {
        meet(&it);
        for (unsigned at = COUNT; at-- > 0;) {
            unsigned value = ~0u;
            OK(fi_trecv(it.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, at, 0, &value));
            completed(&it, &value);
            CHECK(value == at);
        }
    }
    meet(&it);
    close_side(&it);
}

/* Many more messages than the ceiling has room for. The last is received first: no receive stalls. */
static void held_back(void) {
    enum { COUNT = 5000 };
    struct side it;
    OK(setenv("NEMESIA_UNEXPECTED_BYTES", "65536", 1));
    open_side(&it, &(struct options){0});
    for (unsigned at = 0; rank == 0 && at < COUNT; at++) POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, at));
    for (unsigned at = COUNT; rank == 1 && at-- > 0;) {
        unsigned value = ~0u;
        OK(fi_trecv(it.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, at, 0, &value));
        completed(&it, &value);
        CHECK(value == at);
    }
    meet(&it);
    close_side(&it);
}

/* Counters of sends and receives, of successes and of errors. */
static void counted(void) {
    struct side it;
    struct fid_cntr *sends, *receives;
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    int value = 0;
    memset(&it, 0, sizeof it);
    open_domain(&it, &(struct options){0});
    open_endpoint(&it, &(struct options){0});
    OK(fi_cntr_open(it.domain, &attr, &sends, NULL));
    OK(fi_cntr_open(it.domain, &attr, &receives, NULL));
    OK(fi_ep_bind(it.ep, &sends->fid, FI_SEND));
    OK(fi_ep_bind(it.ep, &receives->fid, FI_RECV));
    exchange(&it, it.own, it.others, ADDRESS);
    RETURNS(fi_av_insert(it.av, it.others, 1, &it.peer, 0, NULL), 1);
    for (unsigned round = 1; round <= 100; round++) {
        OK(fi_recv(it.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, &value));
        POSTED(&it, fi_inject(it.ep, &round, sizeof round, it.peer));
        OK(fi_cntr_wait(receives, round, 1000 * LIMIT));
        OK(fi_cntr_wait(sends, round, 1000 * LIMIT));
        CHECK(value == (int)round);
        meet(&it);
    }
    CHECK(fi_cntr_read(sends) == 100 && fi_cntr_read(receives) == 100 && fi_cntr_readerr(receives) == 0);
    OK(fi_recv(it.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, &value));
    OK(fi_cancel(&it.ep->fid, &value));
    RETURNS(fi_cntr_wait(receives, 101, 1000 * LIMIT), -FI_EAVAIL);
    CHECK(fi_cntr_readerr(receives) == 1 && fi_cntr_read(receives) == 100);
    RETURNS(fi_cntr_wait(sends, 101, 0), -FI_ETIMEDOUT);
    meet(&it);
    RETURNS(fi_close(&sends->fid), -FI_EBUSY);
    OK(fi_close(&it.ep->fid));
    OK(fi_close(&sends->fid));
    OK(fi_close(&receives->fid));
    OK(fi_close(&it.progress->fid));
    OK(fi_close(&it.cq->fid));
    OK(fi_close(&it.av->fid));
    OK(fi_close(&it.domain->fid));
    OK(fi_close(&it.fabric->fid));
    fi_freeinfo(it.info);
}

/* An endpoint sends to itself, short and long, before and after its receive. */
static void loopback(void) {
    struct side it;
    unsigned char *out = new_bytes(LONGEST), *in = new_bytes(LONGEST);
    memset(&it, 0, sizeof it);
    open_domain(&it, &(struct options){0});
    open_endpoint(&it, &(struct options){0});
    RETURNS(fi_av_insert(it.av, it.own, 1, &it.me, 0, NULL), 1);
    for (unsigned at = 0; at < 2 * SIZES_COUNT; at++) {
        const size_t length = SIZES[at % SIZES_COUNT];
        int done = 0;
        filled(out, length, at);
        if (at >= SIZES_COUNT) OK(fi_trecv(it.ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, at, 0, in));
        POSTED(&it, fi_tsend(it.ep, out, length, NULL, it.me, at, out));
        if (at < SIZES_COUNT) OK(fi_trecv(it.ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, at, 0, in));
        while (done < 2) {
            struct fi_cq_tagged_entry entry;
            RETURNS(next_from(&it, &entry, NULL), 1);
            CHECK(entry.op_context == in || entry.op_context == out);
            CHECK(entry.op_context == out || entry.len == length);
            done++;
        }
        CHECK(is_filled(in, length, at));
    }
    close_side(&it);
    free(out), free(in);
}

/* Several endpoints of one process at once, each of which the peer knows; FI_SOURCE and FI_DIRECTED_RECV tell them. */
static void many_endpoints(void) {
    enum { COUNT = 3 };
    const struct options options = {.caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV};
    struct side it[COUNT];
    int in[COUNT], value;
    for (int at = 0; at < COUNT; at++) open_side(&it[at], &options);
    fi_addr_t all[COUNT];
    for (int at = 0; at < COUNT; at++) RETURNS(fi_av_insert(it[0].av, it[at].others, 1, &all[at], 0, NULL), 1);
    CHECK(all[0] == it[0].peer);
    for (int at = 1; at < COUNT; at++) it[at - 1].next = &it[at];
    if (rank == 0) {
        /* From the last endpoint first, whichever sends first. */
        for (int at = 0; at < COUNT; at++) OK(fi_trecv(it[0].ep, &in[at], 4, NULL, all[at], 0, 0, &in[at]));
        meet(&it[0]);
        for (int done = 0; done < COUNT; done++) {
            struct fi_cq_tagged_entry entry;
            fi_addr_t source = FI_ADDR_UNSPEC;
            RETURNS(next_from(&it[0], &entry, &source), 1);
            const int *at = entry.op_context;
            CHECK(*at == (int)(at - in) && source == all[at - in]);
        }
    } else {
        meet(&it[0]);
        for (int at = COUNT; at-- > 0;) {
            value = at;
            fi_addr_t to;
            RETURNS(fi_av_insert(it[at].av, it[0].others, 1, &to, 0, NULL), 1);
            POSTED(&it[at], fi_tinject(it[at].ep, &value, 4, to, 0));
        }
    }
    meet(&it[0]);
    for (int at = 0; at < COUNT; at++) close_side(&it[at]);
}

static const struct test TESTS[] = {
    {"untagged", untagged, 2}, {"tagged", tagged, 2}, {"tags_match_by_mask", tags_match_by_mask, 2},
    {"inject", inject, 2}, {"immediate", immediate, 2}, {"lists", lists, 2}, {"formats", formats, 2},
    {"selective", selective, 2}, {"truncated", truncated, 2}, {"multi_receive", multi_receive, 2},
    {"cancelled", cancelled, 2}, {"peeked", peeked, 2}, {"unexpected", unexpected, 2}, {"held_back", held_back, 2},
    {"counted", counted, 2}, {"loopback", loopback, 1}, {"many_endpoints", many_endpoints, 2},
};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }
