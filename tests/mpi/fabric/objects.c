/* Objects, each for itself: fabtests' groups getinfo_test, av_test, cntr_test, cq_test, dom_test, eq_test, mr_test,
 * resource_freeing, setopt_test; and what is not offered, which fails as the manual pages say. */
#include "sides.h"

/* Returns what fi_getinfo returns for hints that a change makes of the usual ones. */
#define ASKED(change)                                                                                           \
    ({                                                                                                          \
        struct fi_info *hints = new_hints(), *found_ = NULL;                                                    \
        change;                                                                                                 \
        const int status_ = fi_getinfo(API, NULL, NULL, 0, hints, &found_);                                     \
        if (status_ == 0) fi_freeinfo(found_);                                                                  \
        fi_freeinfo(hints);                                                                                     \
        status_;                                                                                                \
    })

/* What is offered is what is asked for, and no more is offered than can be had. */
static void information(void) {
    const uint64_t caps[] = {FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC, FI_MSG | FI_MULTI_RECV, FI_TAGGED | FI_DIRECTED_RECV,
                             FI_MSG | FI_SOURCE, FI_RMA | FI_WRITE, FI_MSG | FI_SEND,
                             FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM};
    const uint64_t lacking[] = {FI_MULTICAST, FI_NAMED_RX_CTX, FI_HMEM, FI_TRIGGER, FI_FENCE, FI_RMA_EVENT,
                                FI_SHARED_AV, FI_COLLECTIVE, FI_VARIABLE_MSG, FI_RMA_PMEM, FI_SOURCE_ERR};
    const uint64_t all = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | FI_READ | FI_WRITE |
                         FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE |
                         FI_LOCAL_COMM | FI_REMOTE_COMM;
    struct fi_info *hints = new_hints(), *info;
    OK(fi_getinfo(API, NULL, NULL, 0, hints, &info));
    CHECK(strcmp(info->fabric_attr->prov_name, "nemesia") == 0 && info->next == NULL);
    CHECK(info->ep_attr->type == FI_EP_RDM && info->mode == 0 && info->domain_attr->mr_mode == 0);
    CHECK(info->tx_attr->inject_size >= 64 && info->ep_attr->max_msg_size >= (size_t)1 << 32);
    CHECK(info->domain_attr->data_progress == FI_PROGRESS_MANUAL);
    /* An application that sees a kind of address vector takes it for the only one. */
    CHECK(info->domain_attr->av_type == FI_AV_UNSPEC);
    /* Who asks for nothing finds all that can be had. */
    CHECK((info->caps & all) == all && (info->rx_attr->caps & FI_DIRECTED_RECV) != 0);
    fi_freeinfo(info);
    OK(fi_getinfo(API, NULL, NULL, 0, NULL, &info));
    const struct fi_info *ours = info;
    while (ours != NULL && strcmp(ours->fabric_attr->prov_name, "nemesia") != 0) ours = ours->next;
    CHECK(ours != NULL && (ours->caps & all) == all);
    fi_freeinfo(info);
    for (size_t at = 0; at < sizeof caps / sizeof *caps; at++) {
        hints->caps = caps[at];
        OK(fi_getinfo(API, NULL, NULL, 0, hints, &info));
        CHECK((info->caps & caps[at]) == caps[at]);
        CHECK((info->tx_attr->caps & ~info->caps) == 0 && (info->rx_attr->caps & ~info->caps) == 0);
        CHECK((info->tx_attr->caps & (FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE)) == 0);
        CHECK((info->rx_attr->caps & (FI_SEND | FI_READ | FI_WRITE)) == 0);
        /* What was found can be asked for again. */
        struct fi_info *again;
        OK(fi_getinfo(API, NULL, NULL, 0, info, &again));
        fi_freeinfo(again);
        fi_freeinfo(info);
    }
    fi_freeinfo(hints);
    for (size_t at = 0; at < sizeof lacking / sizeof *lacking; at++) {
        RETURNS(ASKED(hints->caps = FI_MSG | lacking[at]), -FI_ENODATA);
    }
    OK(ASKED((void)hints));
    RETURNS(ASKED(hints->ep_attr->type = FI_EP_MSG), -FI_ENODATA);
    RETURNS(ASKED(hints->ep_attr->type = FI_EP_DGRAM), -FI_ENODATA);
    RETURNS(ASKED(hints->addr_format = FI_SOCKADDR_IN), -FI_ENODATA);
    RETURNS(ASKED(hints->tx_attr->inject_size = 1 << 20), -FI_ENODATA);
    RETURNS(ASKED(hints->tx_attr->iov_limit = 1000), -FI_ENODATA);
    RETURNS(ASKED(hints->tx_attr->comp_order = FI_ORDER_STRICT), -FI_ENODATA);
    RETURNS(ASKED(hints->rx_attr->msg_order = FI_ORDER_STRICT), -FI_ENODATA);
    RETURNS(ASKED(hints->ep_attr->tx_ctx_cnt = 2), -FI_ENODATA);
    RETURNS(ASKED(hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT), -FI_ENODATA);
    RETURNS(ASKED(hints->domain_attr->data_progress = FI_PROGRESS_AUTO), -FI_ENODATA);
    RETURNS(ASKED(hints->domain_attr->cq_data_size = 16), -FI_ENODATA);
    RETURNS(ASKED(hints->domain_attr->name = strdup("another")), -FI_ENODATA);
    RETURNS(ASKED(hints->tx_attr->op_flags = FI_COMMIT_COMPLETE), -FI_ENODATA);
    for (int threading = FI_THREAD_UNSPEC; threading <= FI_THREAD_ENDPOINT; threading++) {
        OK(ASKED(hints->domain_attr->threading = threading));
    }
}

static void addresses(void) {
    struct side it;
    unsigned char made[3][ADDRESS], back[ADDRESS];
    char text[300];
    size_t length;
    fi_addr_t all[3], again;
    memset(&it, 0, sizeof it);
    for (int type = FI_AV_UNSPEC; type <= FI_AV_TABLE; type++) {
        struct fi_av_attr attr = {.type = type};
        struct fid_av *av;
        const struct options options = {.av = type};
        open_domain(&it, &options);
        open_endpoint(&it, &options);
        OK(fi_av_open(it.domain, &attr, &av, NULL));
        CHECK(attr.type == FI_AV_TABLE || attr.type == FI_AV_MAP);
        for (int at = 0; at < 3; at++) filled(made[at], ADDRESS, (unsigned)at);
        RETURNS(fi_av_insert(av, made, 3, all, 0, NULL), 3);
        for (int at = 0; at < 3; at++) {
            if (attr.type == FI_AV_TABLE) CHECK(all[at] == (fi_addr_t)at);
            length = ADDRESS;
            OK(fi_av_lookup(av, all[at], back, &length));
            CHECK(length == ADDRESS && memcmp(back, made[at], ADDRESS) == 0);
        }
        /* The first bytes, if there is no more room; and the length that is needed. */
        length = 10;
        memset(back, 0, sizeof back);
        OK(fi_av_lookup(av, all[1], back, &length));
        CHECK(length == ADDRESS && memcmp(back, made[1], 10) == 0 && back[10] == 0);
        RETURNS(fi_av_insert(av, made[1], 1, &again, 0, NULL), 1);
        CHECK(again == all[1]);
        OK(fi_av_remove(av, &all[1], 1, 0));
        length = ADDRESS;
        RETURNS(fi_av_lookup(av, all[1], back, &length), -FI_EINVAL);
        RETURNS(fi_av_remove(av, &all[1], 1, 0), -FI_EINVAL);
        RETURNS(fi_av_insert(av, NULL, 1, &again, 0, NULL), -FI_EINVAL);
        RETURNS(fi_av_insert(av, made, 0, NULL, 0, NULL), 0);
        length = sizeof text;
        CHECK(fi_av_straddr(av, made[0], text, &length) == text && length == strlen(text) + 1);
        length = 4;
        fi_av_straddr(av, made[0], text, &length);
        CHECK(strlen(text) == 3);
        OK(fi_close(&av->fid));
        /* Nobody has an address that is only bytes: the send fails, in the call or later. */
        RETURNS(fi_av_insert(it.av, made[0], 1, &again, 0, NULL), 1);
        CHECK(fi_send(it.ep, text, 1, NULL, again, text) < 0);
        CHECK(fi_send(it.ep, text, 1, NULL, 12345, text) == -FI_EINVAL);
        length = 10;
        RETURNS(fi_getname(&it.ep->fid, back, &length), -FI_ETOOSMALL);
        CHECK(length == ADDRESS);
        RETURNS(fi_close(&it.av->fid), -FI_EBUSY);
        close_side(&it);
    }
    open_domain(&it, &(struct options){0});
    struct fi_av_attr shared = {.type = FI_AV_TABLE, .name = "nemesia-test"};
    RETURNS(fi_av_open(it.domain, &shared, &it.av, NULL), -FI_ENOSYS);
    struct fi_av_attr later = {.type = FI_AV_TABLE, .flags = FI_EVENT};
    RETURNS(fi_av_open(it.domain, &later, &it.av, NULL), -FI_ENOSYS);
    OK(fi_close(&it.domain->fid));
    OK(fi_close(&it.fabric->fid));
    fi_freeinfo(it.info);
}

static void queues_and_counters(void) {
    struct side it;
    struct fid_cq *queue;
    struct fid_cntr *counter;
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    memset(&it, 0, sizeof it);
    open_domain(&it, &(struct options){0});
    for (int format = FI_CQ_FORMAT_UNSPEC; format <= FI_CQ_FORMAT_TAGGED; format++) {
        for (size_t size = 0; size <= 1024; size = size * 4 + 1) {
            struct fi_cq_attr attr = {.format = format, .size = size, .wait_obj = FI_WAIT_NONE};
            OK(fi_cq_open(it.domain, &attr, &queue, NULL));
            RETURNS(fi_cq_read(queue, &entry, 1), -FI_EAGAIN);
            RETURNS(fi_cq_readerr(queue, &error, 0), -FI_EAGAIN);
            RETURNS(fi_cq_sread(queue, &entry, 1, NULL, 1), -FI_EAGAIN);
            OK(fi_close(&queue->fid));
        }
    }
    struct fi_cq_attr wrong = {.format = 77};
    RETURNS(fi_cq_open(it.domain, &wrong, &queue, NULL), -FI_EINVAL);
    struct fi_cq_attr set = {.wait_obj = FI_WAIT_SET};
    RETURNS(fi_cq_open(it.domain, &set, &queue, NULL), -FI_ENOSYS);
    struct fi_cq_attr threshold = {.wait_cond = FI_CQ_COND_THRESHOLD};
    RETURNS(fi_cq_open(it.domain, &threshold, &queue, NULL), -FI_ENOSYS);
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    OK(fi_cntr_open(it.domain, &attr, &counter, NULL));
    OK(fi_cntr_set(counter, 5));
    OK(fi_cntr_add(counter, 7));
    CHECK(fi_cntr_read(counter) == 12 && fi_cntr_readerr(counter) == 0);
    OK(fi_cntr_adderr(counter, 2));
    OK(fi_cntr_seterr(counter, 9));
    CHECK(fi_cntr_readerr(counter) == 9);
    OK(fi_cntr_wait(counter, 12, -1));
    RETURNS(fi_cntr_wait(counter, 13, 1), -FI_ETIMEDOUT);
    OK(fi_close(&counter->fid));
    struct fi_cntr_attr waiting = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD};
    RETURNS(fi_cntr_open(it.domain, &waiting, &counter, NULL), -FI_ENOSYS);
    OK(fi_close(&it.domain->fid));
    OK(fi_close(&it.fabric->fid));
    fi_freeinfo(it.info);
}

static void event_queues(void) {
    struct side it;
    struct fid_eq *queue;
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE, .flags = FI_WRITE};
    struct fi_eq_entry in = {.data = 1}, out;
    struct fi_eq_err_entry error = {0};
    uint32_t event = 0;
    memset(&it, 0, sizeof it);
    open_domain(&it, &(struct options){0});
    OK(fi_eq_open(it.fabric, &attr, &queue, NULL));
    RETURNS(fi_eq_read(queue, &event, &out, sizeof out, 0), -FI_EAGAIN);
    RETURNS(fi_eq_readerr(queue, &error, 0), -FI_EAGAIN);
    for (int at = 0; at < 5; at++) {
        in.context = &it, in.data = (uint64_t)at;
        RETURNS(fi_eq_write(queue, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
    }
    RETURNS(fi_eq_read(queue, &event, &out, sizeof out, FI_PEEK), sizeof out);
    RETURNS(fi_eq_read(queue, &event, &out, 3, 0), -FI_ETOOSMALL);
    for (int at = 0; at < 5; at++) {
        RETURNS(fi_eq_sread(queue, &event, &out, sizeof out, 1000 * LIMIT, 0), sizeof out);
        CHECK(event == FI_NOTIFY && out.context == &it && out.data == (uint64_t)at);
    }
    RETURNS(fi_eq_sread(queue, &event, &out, sizeof out, 5, 0), -FI_EAGAIN);
    OK(fi_domain_bind(it.domain, &queue->fid, 0));
    OK(fi_close(&it.domain->fid));
    OK(fi_close(&queue->fid));
    OK(fi_close(&it.fabric->fid));
    fi_freeinfo(it.info);
}

/* Many domains and endpoints, opened and closed again and again: no descriptor and no address space is left. */
static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) != -1;
    return count;
}

static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

static void freed(void) {
    struct side many[4];
    int first = 0;
    size_t space = 0;
    for (int round = 0; round < 30; round++) {
        for (int at = 0; at < 4; at++) {
            memset(&many[at], 0, sizeof many[at]);
            open_domain(&many[at], &(struct options){0});
            open_endpoint(&many[at], &(struct options){0});
        }
        RETURNS(fi_close(&many[0].domain->fid), -FI_EBUSY);
        for (int at = 0; at < 4; at++) close_side(&many[at]);
        if (round == 9) first = descriptors(), space = address_space();
    }
    RETURNS(descriptors(), first);
    CHECK(address_space() < space + (64u << 20));
}

/* Objects that are used in a wrong state or with objects of others. */
static void wrong_uses(void) {
    struct side one, two;
    struct fid_ep *ep;
    struct fid_cq *queue;
    char byte = 0;
    size_t size = 0, length = sizeof size;
    const struct options options = {0};
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED};
    memset(&one, 0, sizeof one), memset(&two, 0, sizeof two);
    open_domain(&one, &options), open_domain(&two, &options);
    open_endpoint(&one, &options);
    OK(fi_endpoint(one.domain, one.info, &ep, NULL));
    OK(fi_cq_open(two.domain, &attr, &queue, NULL));
    CHECK(fi_send(ep, &byte, 1, NULL, 0, NULL) < 0);
    CHECK(fi_recv(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, NULL) < 0);
    RETURNS(fi_enable(ep), -FI_ENOAV);
    RETURNS(fi_ep_bind(ep, &queue->fid, FI_SEND), -FI_EINVAL); /* of another domain */
    RETURNS(fi_ep_bind(ep, &one.cq->fid, 0), -FI_EBADFLAGS);
    RETURNS(fi_ep_bind(ep, &one.progress->fid, FI_MULTICAST), -FI_EBADFLAGS);
    /* As fabtests do without FI_RMA_EVENT, which is not offered. */
    OK(fi_ep_bind(ep, &one.progress->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE));
    OK(fi_ep_bind(ep, &one.progress->fid, 0));
    RETURNS(fi_close(&one.cq->fid), -FI_EBUSY);
    OK(fi_close(&queue->fid));
    OK(fi_close(&ep->fid));
    OK(fi_getopt(&one.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, &length));
    CHECK(length == sizeof size);
    RETURNS(fi_setopt(&one.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, sizeof size), -FI_ENOPROTOOPT);
    RETURNS(fi_getopt(&one.ep->fid, FI_OPT_ENDPOINT, 4711, &size, &length), -FI_ENOPROTOOPT);
    close_side(&one);
    OK(fi_close(&two.domain->fid));
    OK(fi_close(&two.fabric->fid));
    fi_freeinfo(two.info);
}

/* What is not offered: an error, and never the end of the process. */
static void not_offered(void) {
    struct side it;
    struct fid_ep *ep;
    struct fid_pep *passive;
    struct fid_poll *poll_set;
    struct fid_wait *wait_set;
    struct fid_stx *stx;
    struct fid_mr *region;
    struct fid_mc *group;
    char bytes[64];
    memset(&it, 0, sizeof it);
    open_domain(&it, &(struct options){0});
    open_endpoint(&it, &(struct options){0});
    struct fi_poll_attr poll_attr = {0};
    struct fi_wait_attr wait_attr = {0};
    struct fi_tx_attr tx = {0};
    struct fi_rx_attr rx = {0};
    RETURNS(fi_scalable_ep(it.domain, it.info, &ep, NULL), -FI_ENOSYS);
    RETURNS(fi_passive_ep(it.fabric, it.info, &passive, NULL), -FI_ENOSYS);
    RETURNS(fi_poll_open(it.domain, &poll_attr, &poll_set), -FI_ENOSYS);
    RETURNS(fi_wait_open(it.fabric, &wait_attr, &wait_set), -FI_ENOSYS);
    RETURNS(fi_stx_context(it.domain, &tx, &stx, NULL), -FI_ENOSYS);
    RETURNS(fi_srx_context(it.domain, &rx, &ep, NULL), -FI_ENOSYS);
    RETURNS(fi_tx_context(it.ep, 0, &tx, &ep, NULL), -FI_ENOSYS);
    RETURNS(fi_connect(it.ep, bytes, NULL, 0), -FI_ENOSYS);
    RETURNS(fi_accept(it.ep, NULL, 0), -FI_ENOSYS);
    RETURNS(fi_shutdown(it.ep, 0), -FI_ENOSYS);
    RETURNS(fi_setname(&it.ep->fid, bytes, sizeof bytes), -FI_ENOSYS);
    RETURNS(fi_join(it.ep, bytes, 0, &group, NULL), -FI_ENOSYS);
    RETURNS(fi_mr_reg(it.domain, NULL, 8, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK(fi_mr_reg(it.domain, bytes, 8, FI_REMOTE_READ, 0, 1, FI_RMA_EVENT, &region, NULL) < 0);
    /* From null to the end is all memory. */
    OK(fi_mr_reg(it.domain, NULL, SIZE_MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &region, NULL));
    OK(fi_close(&region->fid));
    const struct iovec two[2] = {{bytes, 8}, {bytes + 8, 8}};
    CHECK(fi_mr_regv(it.domain, two, 2, FI_REMOTE_READ, 0, 1, 0, &region, NULL) < 0);
    RETURNS(fi_av_insert(it.av, it.own, 1, &it.me, 0, NULL), 1);
    const struct fi_msg message = {.msg_iov = two, .iov_count = 1, .addr = it.me};
    const struct fi_msg_tagged tagged = {.msg_iov = two, .iov_count = 1, .addr = it.me};
    RETURNS(fi_sendmsg(it.ep, &message, FI_MULTICAST), -FI_EBADFLAGS);
    RETURNS(fi_tsendmsg(it.ep, &tagged, FI_TRIGGER), -FI_EBADFLAGS);
    RETURNS(fi_recvmsg(it.ep, &message, FI_PEEK), -FI_EBADFLAGS);
    close_side(&it);
}

/* Returns what a call writes to the standard error output. */
static const char *line_of(struct side *it, void (*call)(struct side *)) {
    static char line[4096];
    int ends[2], before = dup(2);
    ssize_t length;
    CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2);
    call(it);
    CHECK(dup2(before, 2) == 2);
    close(before), close(ends[1]);
    length = read(ends[0], line, sizeof line - 1);
    CHECK(length >= 0);
    line[length] = 0;
    close(ends[0]);
    return line;
}

static void sends_from_null(struct side *it) {
    RETURNS(fi_tsend(it->ep, NULL, 4, NULL, it->me, 0x2a, NULL), -FI_EINVAL);
}

static void receives_into_null(struct side *it) {
    RETURNS(fi_trecv(it->ep, NULL, 4, NULL, FI_ADDR_UNSPEC, 0x2b, 0, NULL), -FI_EINVAL);
}

static void sends_to_nobody(struct side *it) {
    char byte = 0;
    CHECK(fi_send(it->ep, &byte, 1, NULL, it->peer, NULL) < 0);
}

static void reads_without_key(struct side *it) {
    static char byte;
    POSTED(it, fi_read(it->ep, &byte, 1, NULL, it->me, 0, 4711, &byte));
    const struct fi_cq_err_entry error = failed(it, &byte, FI_ENOKEY);
    /* The text is that of the failure, and not that of its number. */
    CHECK(error.prov_errno != error.err);
    CHECK(strstr(fi_cq_strerror(it->cq, error.prov_errno, NULL, NULL, 0), "key") != NULL);
}

static void sends_too_long_for_its_receive(struct side *it) {
    static char from[8], to[4];
    OK(fi_trecv(it->ep, to, sizeof to, NULL, FI_ADDR_UNSPEC, 1, 0, to));
    POSTED(it, fi_tinject(it->ep, from, sizeof from, it->me, 1));
    failed(it, to, FI_ETRUNC);
}

/* A failure is a line for the user, if the user has asked for messages: an MPI may ignore the error. */
static void lines(void) {
    struct side it;
    unsigned char made[ADDRESS];
    memset(&it, 0, sizeof it);
    unsetenv("FI_LOG_LEVEL");
    open_domain(&it, &(struct options){0});
    open_endpoint(&it, &(struct options){0});
    RETURNS(fi_av_insert(it.av, it.own, 1, &it.me, 0, NULL), 1);
    RETURNS(fi_av_insert(it.av, filled(made, ADDRESS, 1), 1, &it.peer, 0, NULL), 1);
    CHECK(line_of(&it, sends_from_null)[0] == 0);
    setenv("FI_LOG_LEVEL", "warn", 1);
    const struct {
        void (*call)(struct side *);
        const char *words[4]; /* the operation, the peer, the reason, the remedy */
    } all[] = {
        {sends_from_null, {"a send", "to address 0, tag 0x2a", "null pointer", "name a buffer"}},
        {receives_into_null, {"a receive", "from any address, tag 0x2b", "null pointer", "name a buffer"}},
        {sends_to_nobody, {"a send", "to address 1", "cannot connect", "is it an address of nemesia"}},
        {reads_without_key, {"a read", "", "key", ""}},
        {sends_too_long_for_its_receive, {"a receive", "", "truncated", ""}},
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        const char *line = line_of(&it, all[at].call);
        for (int word = 0; word < 4; word++) {
            if (strstr(line, all[at].words[word]) == NULL) {
                fprintf(stderr, "`%s` is not in `%s`\n", all[at].words[word], line);
                CHECK(0);
            }
        }
        CHECK(strncmp(line, "nemesia: ", 9) == 0 && strchr(line, '\n') == line + strlen(line) - 1);
    }
    close_side(&it);
}

static const struct test TESTS[] = {
    {"information", information, 1}, {"addresses", addresses, 1}, {"queues_and_counters", queues_and_counters, 1},
    {"event_queues", event_queues, 1}, {"freed", freed, 1}, {"wrong_uses", wrong_uses, 1},
    {"not_offered", not_offered, 1}, {"lines", lines, 1},
};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }
