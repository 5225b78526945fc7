/* What programs of the time of VIPL rely on, beyond its text: `clients CASE`.
 *
 * last-word   the last word of an RDMA write is polled: then all of its bytes are there
 * no-tag      a VI without a protection tag uses memory of every tag
 * past-end    a receive segment that reaches past the end of its registration takes what fits
 * quiet-end   both sides disconnect, one after the other: nothing is printed
 * names       NICs are counted by opening one after the other; vipl.so is opened at run time
 */
#include "common.h"

#include <dlfcn.h>
#include <sched.h>

#define BASE 4096

/* Polls the last byte of a range until it has a value, then returns the first byte with another one, or -1. */
static long stale(const volatile unsigned char *bytes, long len, unsigned char value) {
    long at;
    while (bytes[len - 1] != value) sched_yield();
    for (at = len - 1; at >= 0; at--) {
        if (bytes[at] != value) return at;
    }
    return -1;
}

/* The client writes, and the server writes the last byte back when it has seen the last word. */
static void last_word(side *own) {
    static const unsigned lens[] = {1, 4, 7, 8, 12, 100, 1204, 4096, 5000, 5003, 40000, 65536};
    static const unsigned starts[] = {0, 1, 4, 62};
    unsigned length, start, round;
    unsigned char value = 0;
    place theirs;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    connect_side(own);
    theirs = exchange_places(own, 0);
    for (length = 0; length < sizeof lens / sizeof *lens; length++) {
        for (start = 0; start < sizeof starts / sizeof *starts; start++) {
            for (round = 0; round < 4; round++) {
                unsigned len = lens[length], at = BASE + starts[start];
                place there = theirs;
                value = (unsigned char)(value % 250 + 1);
                if (own->is_server) {
                    CHECK(stale(data_at(own, at), len, value) == -1);
                    memset(data_at(own, 0), value, 1);
                    there.address = (char *)theirs.address + 8;
                    OK(VipPostSend(own->vi, describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE, there, 0, 1), own->handle));
                } else {
                    memset(data_at(own, at), value, len);
                    there.address = (char *)theirs.address + at;
                    OK(VipPostSend(own->vi, describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE, there, at, len), own->handle));
                    CHECK(stale(data_at(own, 8), 1, value) == -1);
                }
                {
                    VIP_DESCRIPTOR *done;
                    OK(VipSendWait(own->vi, LIMIT, &done));
                }
            }
        }
    }
    meet(own, 'e');
    close_side(own);
}

/* Opens what open_side opens, with another VI: its attributes are zero but for the level, the size and the right. */
static void open_without_tag(side *own) {
    VIP_VI_ATTRIBUTES attributes;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    OK(VipDestroyVi(own->vi));
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = MOST_TRANSFER;
    attributes.EnableRdmaWrite = VIP_TRUE;
    OK(VipCreateVi(own->nic, &attributes, NULL, NULL, &own->vi));
    OK(VipQueryVi(own->vi, NULL, &attributes, NULL, NULL));
    CHECK(attributes.Ptag == NULL);
    own->attributes = attributes;
}

static void no_tag(side *own) {
    VIP_DESCRIPTOR *receive = NULL;
    place theirs;
    open_without_tag(own);
    if (own->is_server) receive = post_receive(own, 0, 64);
    connect_side(own);
    theirs = exchange_places(own, BASE);
    if (own->is_server) {
        received(own, receive, VIP_STATUS_OP_RECEIVE, 64);
        CHECK(stale(data_at(own, BASE), 32, 9) == -1);
    } else {
        memset(data_at(own, 0), 9, 64);
        sent(own, post_send(own, 0, 64), VIP_STATUS_OP_SEND, 64);
        VIP_DESCRIPTOR *write = describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE, theirs, 0, 32);
        OK(VipPostSend(own->vi, write, own->handle));
        sent(own, write, VIP_STATUS_OP_RDMA_WRITE, 32);
    }
    meet(own, 'e');
    close_side(own);
}

static void past_end(side *own) {
    unsigned at = MEMORY - 65536 - 64, bytes;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (own->is_server) {
        VIP_DESCRIPTOR *receives[3];
        for (bytes = 0; bytes < 3; bytes++) receives[bytes] = post_receive(own, at, 4096);
        connect_side(own);
        received(own, receives[0], VIP_STATUS_OP_RECEIVE, 0);
        received(own, receives[1], VIP_STATUS_OP_RECEIVE, 64);
        CHECK(stale(data_at(own, at), 64, 5) == -1);
        /* This one does not fit into the registration. */
        received(own, receives[2], VIP_STATUS_OP_RECEIVE | VIP_STATUS_PROTECTION_ERROR, 0);
    } else {
        connect_side(own);
        memset(data_at(own, 0), 5, 65);
        sent(own, post_send(own, 0, 0), VIP_STATUS_OP_SEND, 0);
        sent(own, post_send(own, 0, 64), VIP_STATUS_OP_SEND, 64);
        sent(own, post_send(own, 0, 65), VIP_STATUS_OP_SEND | VIP_STATUS_REMOTE_DESC_ERROR, 0);
    }
    await_state(own, VIP_STATE_ERROR);
    meet(own, 'e');
    close_side(own);
}

static volatile int is_notified;

static void notified(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor) {
    (void)context, (void)nic, (void)vi, (void)descriptor;
    is_notified = 1;
}

static void quiet_end(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    connect_side(own);
    if (own->is_server) {
        OK(VipDisconnect(own->vi));
        meet(own, 'd');
    } else {
        meet(own, 'd');
        await_state(own, VIP_STATE_ERROR);
        /* Errors are reported before callbacks, by the same thread. */
        OK(VipSendNotify(own->vi, NULL, notified));
        post_send(own, 0, 8);
        while (!is_notified) sched_yield();
    }
    meet(own, 'e');
    close_side(own);
}

static void names(void) {
    static const char *const vendors[] = {"nic%d", "/dev/clanvi%d", "/dev/via_eth%d", "VINIC%d"};
    unsigned at;
    for (at = 0; at < sizeof vendors / sizeof *vendors; at++) {
        int count = 0;
        for (;;) {
            char name[32];
            VIP_NIC_HANDLE nic;
            snprintf(name, sizeof name, vendors[at], count);
            if (VipOpenNic(name, &nic) != VIP_SUCCESS) break;
            OK(VipCloseNic(nic));
            CHECK(++count == 1);
        }
        CHECK(count == 1);
    }
    {
        void *library = dlopen("vipl.so", RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL && dlsym(library, "VipOpenNic") != NULL);
    }
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        side_function run;
    } cases[] = {{"last-word", last_word}, {"no-tag", no_tag}, {"past-end", past_end}, {"quiet-end", quiet_end}};
    unsigned at;
    int is_allocated;
    CHECK(count == 2);
    if (strcmp(arguments[1], "names") == 0) {
        current = "names";
        names();
        return 0;
    }
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (strcmp(arguments[1], cases[at].name) != 0) continue;
        for (is_allocated = 0; is_allocated < 2; is_allocated++) {
            two_processes(arguments[1], is_allocated, cases[at].run);
        }
        return 0;
    }
    return 2;
}
