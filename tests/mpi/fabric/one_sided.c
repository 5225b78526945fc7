/* One-sided operations: fabtests' groups rma_bw, rdm_rma_pingpong, rdm_atomic, rdm_rma_event (by data), multi_mr,
 * inject_test, unmap_mem. */
#include "sides.h"

enum { LONG = 1 << 21, KEY = 0x4711 };

/* Memory of this process under a key, and the objects. */
struct exposed {
    struct side it;
    struct fid_mr *region;
    unsigned char *memory;
    uint64_t key, base; /* of the other process */
};

static const uint64_t ALL = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;

static void expose(struct exposed *all, const struct options *options, uint64_t access) {
    open_side(&all->it, options);
    CHECK(posix_memalign((void **)&all->memory, 64, LONG) == 0);
    memset(all->memory, 0, LONG);
    OK(fi_mr_reg(all->it.domain, all->memory, LONG, access, 0, KEY + (uint64_t)rank, 0, &all->region, NULL));
    CHECK(fi_mr_key(all->region) == KEY + (uint64_t)rank);
    all->key = KEY + (uint64_t)!rank;
    all->base = 0; /* offsets, unless the provider wants addresses */
    CHECK((all->it.info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)) == 0);
    meet(&all->it);
}

static void withdraw(struct exposed *all) {
    meet(&all->it);
    OK(fi_close(&all->region->fid));
    close_side(&all->it);
    free(all->memory);
}

/* Waits until the other process has done something, which the completion queue of this one does not show. */
static void read_and_write(void) {
    const size_t lengths[] = {0, 1, 8, 100, 4096, 70001, LONG};
    struct exposed all;
    unsigned char *bytes = malloc(LONG);
    expose(&all, &(struct options){0}, ALL);
    struct side *it = &all.it;
    CHECK(bytes != NULL && it->info->caps & FI_RMA);
    for (unsigned at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        const size_t length = lengths[at], offset = (LONG - length) / 3;
        if (rank == 0) {
            filled(bytes, length, at);
            POSTED(it, fi_write(it->ep, bytes, length, NULL, it->peer, offset, all.key, bytes));
            CHECK(completed(it, bytes).flags == (FI_RMA | FI_WRITE));
            memset(bytes, 0, length);
            POSTED(it, fi_read(it->ep, bytes, length, NULL, it->peer, offset, all.key, bytes + 1));
            CHECK(completed(it, bytes + 1).flags == (FI_RMA | FI_READ));
            CHECK(is_filled(bytes, length, at));
        }
        meet(it);
        /* Written without a call of the owner's that names it. */
        if (rank == 1) CHECK(is_filled(all.memory + offset, length, at));
        meet(it);
    }
    withdraw(&all);
    free(bytes);
}

/* Lists of runs of this process; injected writes, which nothing reports; the own memory. */
static void lists_and_injected(void) {
    struct exposed all;
    unsigned char bytes[3000], back[3000];
    expose(&all, &(struct options){0}, ALL);
    struct side *it = &all.it;
    filled(bytes, sizeof bytes, 9);
    if (rank == 0) {
        const struct iovec out[3] = {{bytes, 1000}, {bytes + 1000, 0}, {bytes + 1000, 2000}};
        const struct iovec in[2] = {{back, 1}, {back + 1, 2999}};
        POSTED(it, fi_writev(it->ep, out, NULL, 3, it->peer, 5, all.key, bytes));
        completed(it, bytes);
        POSTED(it, fi_readv(it->ep, in, NULL, 2, it->peer, 5, all.key, back));
        completed(it, back);
        CHECK(memcmp(bytes, back, sizeof bytes) == 0);
        for (unsigned at = 0; at < 1000; at++) {
            POSTED(it, fi_inject_write(it->ep, &at, sizeof at, it->peer, 4 * at, all.key));
        }
        struct fi_cq_tagged_entry entry;
        meet(it);
        RETURNS(fi_cq_read(it->cq, &entry, 1), -FI_EAGAIN);
        /* A later read of the same memory finds them. */
        POSTED(it, fi_read(it->ep, back, 4, NULL, it->peer, 4 * 999, all.key, back));
        completed(it, back);
        unsigned last;
        memcpy(&last, back, 4);
        CHECK(last == 999);
        CHECK(fi_inject_write(it->ep, all.memory, it->info->tx_attr->inject_size + 1, it->peer, 0, all.key) < 0);
    } else {
        meet(it);
    }
    meet(it);
    if (rank == 1) CHECK(((unsigned *)(void *)all.memory)[500] == 500);
    POSTED(it, fi_write(it->ep, bytes, 100, NULL, it->me, 64, KEY + (uint64_t)rank, bytes));
    completed(it, bytes);
    CHECK(is_filled(all.memory + 64, 100, 9));
    withdraw(&all);
}

/* A write with data: its target reports and counts it, after the bytes are there. */
static void data_beside_writes(void) {
    enum { COUNT = 200 };
    struct exposed all;
    unsigned char *bytes = malloc(70000);
    expose(&all, &(struct options){.counted = FI_REMOTE_READ | FI_REMOTE_WRITE}, ALL);
    struct side *it = &all.it;
    CHECK(bytes != NULL);
    for (unsigned at = 0; at < COUNT; at++) {
        const size_t length = at % 3 == 0 ? 0 : at % 3 == 1 ? 8 : 70000;
        const uint64_t data = 0xf000000000000000u + at;
        if (rank == 0) {
            const struct iovec run = {bytes, length};
            const struct fi_rma_iov place = {.addr = 128, .len = length, .key = all.key};
            const struct fi_msg_rma message = {.msg_iov = &run, .iov_count = 1, .addr = it->peer, .rma_iov = &place,
                                               .rma_iov_count = 1, .context = bytes, .data = data};
            filled(bytes, length, at);
            if (at % 4 == 3 && length <= 8) {
                POSTED(it, fi_inject_writedata(it->ep, bytes, length, data, it->peer, 128, all.key));
            } else {
                if (at % 2) POSTED(it, fi_writedata(it->ep, bytes, length, NULL, data, it->peer, 128, all.key, bytes));
                else POSTED(it, fi_writemsg(it->ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
                CHECK(completed(it, bytes).flags == (FI_RMA | FI_WRITE));
            }
        } else {
            const struct fi_cq_tagged_entry entry = completed(it, NULL);
            CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == data);
            CHECK(entry.len == length && is_filled(all.memory + 128, length, at));
        }
        /* Before they meet: the next write may be counted from then on. */
        CHECK(fi_cntr_read(it->progress) == (rank == 1 ? at + 1 : 0));
        meet(it);
    }
    withdraw(&all);
    free(bytes);
}

/* Writes with data, 1,000 at once, until all have completed or none has for so long. */
static void write_many(struct exposed *all, unsigned *begun, unsigned *done, unsigned count, double seconds) {
    double end = now() + seconds;
    struct side *it = &all->it;
    struct fi_cq_tagged_entry entry;
    while (*done < count && now() < end) {
        if (*begun < count && *begun - *done < 1000) {
            const ssize_t posted = fi_writedata(it->ep, NULL, 0, NULL, *begun, it->peer, 0, all->key, NULL);
            CHECK(posted == 0 || posted == -FI_EAGAIN);
            *begun += posted == 0;
        }
        const ssize_t taken = fi_cq_read(it->cq, &entry, 1);
        CHECK(taken == 1 || taken == -FI_EAGAIN);
        if (taken == 1) end = now() + seconds, ++*done;
    }
}

/* While the target makes progress but reads no completion, writes with data fill no memory: their origin is held back.
 * Later all arrive. */
static void flooded(void) {
    enum { COUNT = 50000 };
    struct exposed all;
    unsigned begun = 0, done = 0;
    expose(&all, &(struct options){0}, ALL);
    struct side *it = &all.it;
    if (rank == 0) {
        write_many(&all, &begun, &done, COUNT, 2);
        CHECK(done < COUNT);
    }
    meet(it); /* the target reads a counter meanwhile */
    if (rank == 0) {
        write_many(&all, &begun, &done, COUNT, LIMIT);
        CHECK(done == COUNT);
    } else {
        for (unsigned at = 0; at < COUNT; at++) CHECK(completed(it, NULL).data == at);
    }
    withdraw(&all);
}

/* What the owner does not allow fails, in the call or in the completion, and the endpoints go on. */
static void refused(void) {
    struct exposed all;
    char value[16] = {0};
    int bad[4];
    expose(&all, &(struct options){0}, FI_REMOTE_READ);
    struct side *it = &all.it;
    if (rank == 0) {
        POSTED(it, fi_write(it->ep, value, 8, NULL, it->peer, 0, all.key, &bad[0]));
        failed(it, &bad[0], FI_EACCES);
        POSTED(it, fi_read(it->ep, value, 8, NULL, it->peer, 0, all.key + 100, &bad[1]));
        failed(it, &bad[1], FI_ENOKEY);
        POSTED(it, fi_read(it->ep, value, 8, NULL, it->peer, LONG - 7, all.key, &bad[2]));
        failed(it, &bad[2], FI_EINVAL);
        /* Its end is beyond all addresses: refused at once. */
        RETURNS(fi_read(it->ep, value, 8, NULL, it->peer, ~0ull - 3, all.key, &bad[3]), -FI_EINVAL);
        POSTED(it, fi_read(it->ep, value, 8, NULL, it->peer, LONG - 8, all.key, value));
        completed(it, value);
        CHECK(fi_read(it->ep, NULL, 8, NULL, it->peer, 0, all.key, value) == -FI_EINVAL);
    }
    meet(it);
    /* Closed: peers cannot reach the memory any more, which may be returned to the system. */
    OK(fi_close(&all.region->fid));
    free(all.memory);
    meet(it);
    POSTED(it, fi_read(it->ep, value, 8, NULL, it->peer, 0, all.key, value));
    failed(it, value, FI_ENOKEY);
    meet(it);
    close_side(it);
}

/* Many regions, keys that are used twice, and a region that is as old as the domain. */
static void many_regions(void) {
    enum { COUNT = 64 };
    struct exposed all;
    struct fid_mr *regions[COUNT], *twice;
    long values[COUNT], in[COUNT];
    expose(&all, &(struct options){0}, ALL);
    struct side *it = &all.it;
    for (long at = 0; at < COUNT; at++) {
        values[at] = at;
        OK(fi_mr_reg(it->domain, &values[at], sizeof(long), ALL, 0, (uint64_t)(1000 + at), 0, &regions[at], NULL));
    }
    RETURNS(fi_mr_reg(it->domain, values, 8, ALL, 0, 1000, 0, &twice, NULL), -FI_ENOKEY);
    meet(it);
    for (int at = 0; at < COUNT; at++) {
        POSTED(it, fi_read(it->ep, &in[at], sizeof(long), NULL, it->peer, 0, (uint64_t)(1000 + at), &in[at]));
    }
    for (int done = 0; done < COUNT; done++) {
        struct fi_cq_tagged_entry entry;
        RETURNS(next_from(it, &entry, NULL), 1);
        CHECK(*(long *)entry.op_context == (long *)entry.op_context - in);
    }
    meet(it);
    for (int at = 0; at < COUNT; at++) OK(fi_close(&regions[at]->fid));
    withdraw(&all);
}

/* The value of an operation, computed here. `kind`: 0 changes, 1 fetches, 2 swaps. */
#define COMPUTE(type, integer)                                                                                  \
    static type compute_##type(enum fi_op op, type old, type operand, type compare) {                           \
        switch (op) {                                                                                           \
        case FI_MIN: return old < operand ? old : operand;                                                      \
        case FI_MAX: return old > operand ? old : operand;                                                      \
        case FI_SUM: return (type)(old + operand);                                                              \
        case FI_PROD: return (type)(old * operand);                                                             \
        case FI_LOR: return (type)(old || operand);                                                             \
        case FI_LAND: return (type)(old && operand);                                                            \
        case FI_LXOR: return (type)(!old != !operand);                                                          \
        case FI_ATOMIC_WRITE: return operand;                                                                   \
        case FI_ATOMIC_READ: return old;                                                                        \
        case FI_CSWAP: return compare == old ? operand : old;                                                   \
        case FI_CSWAP_NE: return compare != old ? operand : old;                                                \
        case FI_CSWAP_LE: return compare <= old ? operand : old;                                                \
        case FI_CSWAP_LT: return compare < old ? operand : old;                                                 \
        case FI_CSWAP_GE: return compare >= old ? operand : old;                                                \
        case FI_CSWAP_GT: return compare > old ? operand : old;                                                 \
        default: return integer(op, old, operand, compare);                                                     \
        }                                                                                                       \
    }                                                                                                           \
    static void check_##type(struct exposed *all, enum fi_datatype datatype, int kind, enum fi_op op) {         \
        enum { COUNT = 3 };                                                                                     \
        const type olds[COUNT] = {(type)7, (type)0, (type)100}, operands[COUNT] = {(type)3, (type)5, (type)-9}; \
        const type compares[COUNT] = {(type)7, (type)1, (type)-6};                                              \
        type results[COUNT] = {0}, in[COUNT];                                                                   \
        struct side *it = &all->it;                                                                             \
        const struct fi_ioc out[2] = {{(void *)operands, 1}, {(void *)(operands + 1), COUNT - 1}};              \
        const struct fi_ioc comp[2] = {{(void *)compares, 2}, {(void *)(compares + 2), COUNT - 2}};             \
        struct fi_ioc res[2] = {{results, 1}, {results + 1, COUNT - 1}};                                        \
        POSTED(it, fi_inject_atomic(it->ep, olds, COUNT, it->peer, 256, all->key, datatype, FI_ATOMIC_WRITE));  \
        if (kind == 0) {                                                                                        \
            POSTED(it, fi_atomicv(it->ep, out, NULL, 2, it->peer, 256, all->key, datatype, op, in));            \
        } else if (kind == 1) {                                                                                 \
            POSTED(it, fi_fetch_atomicv(it->ep, out, NULL, 2, res, NULL, 2, it->peer, 256, all->key, datatype,  \
                                        op, in));                                                               \
        } else {                                                                                                \
            POSTED(it, fi_compare_atomicv(it->ep, out, NULL, 2, comp, NULL, 2, res, NULL, 2, it->peer, 256,     \
                                          all->key, datatype, op, in));                                         \
        }                                                                                                       \
        CHECK(completed(it, in).flags == (FI_ATOMIC | (kind == 0 ? FI_WRITE : FI_READ)));                       \
        POSTED(it, fi_fetch_atomic(it->ep, NULL, COUNT, NULL, in, NULL, it->peer, 256, all->key, datatype,      \
                                   FI_ATOMIC_READ, in));                                                        \
        completed(it, in);                                                                                      \
        for (int at = 0; at < COUNT; at++) {                                                                    \
            const type expected = compute_##type(op, olds[at], operands[at], compares[at]);                     \
            if (in[at] != expected || (kind > 0 && results[at] != olds[at])) {                                  \
                fprintf(stderr, "type %d, operation %d, kind %d, value %d: %g, not %g; before %g\n", datatype,  \
                        op, kind, at, (double)in[at], (double)expected, (double)results[at]);                   \
                _exit(1);                                                                                       \
            }                                                                                                   \
        }                                                                                                       \
    }

#define BITS(op, old, operand, compare)                                                                         \
    (op == FI_BOR    ? (old) | (operand)                                                                        \
     : op == FI_BAND ? (old) & (operand)                                                                        \
     : op == FI_BXOR ? (old) ^ (operand)                                                                        \
                     : ((operand) & (compare)) | ((old) & ~(compare)))
#define NO_BITS(op, old, operand, compare) ((void)(op), (void)(operand), (void)(compare), old)

COMPUTE(int8_t, BITS)
COMPUTE(uint8_t, BITS)
COMPUTE(int16_t, BITS)
COMPUTE(uint16_t, BITS)
COMPUTE(int32_t, BITS)
COMPUTE(uint32_t, BITS)
COMPUTE(int64_t, BITS)
COMPUTE(uint64_t, BITS)
COMPUTE(float, NO_BITS)
COMPUTE(double, NO_BITS)

typedef void checker(struct exposed *, enum fi_datatype, int, enum fi_op);
static checker *const CHECKERS[] = {check_int8_t, check_uint8_t, check_int16_t, check_uint16_t, check_int32_t,
                                    check_uint32_t, check_int64_t, check_uint64_t, check_float, check_double};

/* Every operation that the provider says it has does what the manual page says; and it has what it says. */
static void every_atomic(void) {
    struct exposed all;
    int offered = 0;
    expose(&all, &(struct options){.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC}, ALL);
    struct side *it = &all.it;
    for (int datatype = 0; datatype < FI_DATATYPE_LAST + 2; datatype++) {
        for (int op = 0; op < FI_ATOMIC_OP_LAST; op++) {
            for (int kind = 0; kind < 3; kind++) {
                const uint64_t flags = kind == 0 ? 0 : kind == 1 ? FI_FETCH_ATOMIC : FI_COMPARE_ATOMIC;
                size_t count = 0;
                struct fi_atomic_attr attr = {0};
                const int valid = kind == 0   ? fi_atomicvalid(it->ep, datatype, op, &count)
                                  : kind == 1 ? fi_fetch_atomicvalid(it->ep, datatype, op, &count)
                                              : fi_compare_atomicvalid(it->ep, datatype, op, &count);
                RETURNS(fi_query_atomic(it->domain, datatype, op, &attr, flags), valid);
                if (valid != 0) {
                    RETURNS(valid, -FI_EOPNOTSUPP);
                    continue;
                }
                CHECK(count >= 3 && attr.count == count && datatype <= FI_DOUBLE);
                CHECK((op >= FI_CSWAP) == (kind == 2) && attr.size > 0);
                if (rank == 0) CHECKERS[datatype](&all, datatype, kind, op);
                offered++;
            }
        }
    }
    /* Integers: 11 changes, 12 fetches, 7 swaps. Floats: 8, 9, 6. */
    RETURNS(offered, 8 * (11 + 12 + 7) + 2 * (8 + 9 + 6));
    withdraw(&all);
}

/* Both processes and all calls at once: nothing is lost. The most values of one call. */
static void atomics_add_up(void) {
    enum { COUNT = 500 };
    struct exposed all;
    const uint64_t one = 1;
    uint64_t old[COUNT];
    expose(&all, &(struct options){.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC}, ALL);
    struct side *it = &all.it;
    const fi_addr_t owner = rank == 0 ? it->me : it->peer;
    for (int at = 0; at < COUNT; at++) {
        POSTED(it, fi_fetch_atomic(it->ep, &one, 1, NULL, &old[at], NULL, owner, 8, KEY, FI_UINT64, FI_SUM, &old[at]));
    }
    for (int done = 0; done < COUNT; done++) {
        struct fi_cq_tagged_entry entry;
        RETURNS(next_from(it, &entry, NULL), 1);
        CHECK(*(uint64_t *)entry.op_context < 2 * COUNT);
    }
    meet(it);
    if (rank == 0) CHECK(((uint64_t *)(void *)all.memory)[1] == 2 * COUNT);
    size_t most;
    OK(fi_atomicvalid(it->ep, FI_DOUBLE, FI_SUM, &most));
    double *values = calloc(most + 1, sizeof *values);
    CHECK(values != NULL);
    for (size_t at = 0; at < most; at++) values[at] = (double)at;
    meet(it);
    if (rank == 1) {
        for (int turn = 0; turn < 2; turn++) {
            POSTED(it, fi_atomic(it->ep, values, most, NULL, it->peer, 4096, KEY, FI_DOUBLE, FI_SUM, values));
            completed(it, values);
        }
        CHECK(fi_atomic(it->ep, values, most + 1, NULL, it->peer, 4096, KEY, FI_DOUBLE, FI_SUM, values) < 0);
        /* Not at a multiple of its size. */
        POSTED(it, fi_atomic(it->ep, values, 1, NULL, it->peer, 4097, KEY, FI_DOUBLE, FI_SUM, values));
        failed(it, values, FI_EINVAL);
    }
    meet(it);
    if (rank == 0) {
        const double *sums = (const double *)(const void *)(all.memory + 4096);
        for (size_t at = 0; at < most; at++) CHECK(sums[at] == 2 * (double)at);
    }
    withdraw(&all);
    free(values);
}

static const struct test TESTS[] = {
    {"read_and_write", read_and_write, 2}, {"lists_and_injected", lists_and_injected, 2},
    {"data_beside_writes", data_beside_writes, 2}, {"flooded", flooded, 2}, {"refused", refused, 2},
    {"many_regions", many_regions, 2}, {"every_atomic", every_atomic, 2}, {"atomics_add_up", atomics_add_up, 2},
};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }
