/* What the tests of libvipl share: checks, two processes that meet, memory of either kind, and descriptors. */
#ifndef COMMON_H
#define COMMON_H

#include <vipl.h>
#include <vipl_nemesia.h>

#include "coverage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hosts.h"

/* Limits of waits in milliseconds: as long as a test may take on a busy machine. */
#define LIMIT 60000
#define MOST_TRANSFER 65536
#define MEMORY (1 << 20)

static const char *current = "?";

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "%s:%d: case %s, process %d: %s\n", __FILE__, __LINE__, current, (int)getpid(),   \
                    #condition);                                                                              \
            _exit(1);                                                                                         \
        }                                                                                                     \
    } while (0)

#define GIVES(code, call) GIVES_AS(code, call, #call)
#define OK(call) GIVES_AS(VIP_SUCCESS, call, #call)

#define GIVES_AS(code, call, text)                                                                            \
    do {                                                                                                      \
        VIP_RETURN given_ = (call);                                                                           \
        if (given_ != (code)) {                                                                               \
            fprintf(stderr, "%s:%d: case %s, process %d: %s returned %d instead of " #code "\n", __FILE__,    \
                    __LINE__, current, (int)getpid(), text, (int)given_);                                    \
            _exit(1);                                                                                         \
        }                                                                                                     \
    } while (0)

/* One side of a test. */
typedef struct {
    int is_server;
    int out, in; /* the pipes to the other side */
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CQ_HANDLE send_queue, receive_queue;
    char *memory;
    VIP_MEM_HANDLE handle;
    int is_allocated;
    unsigned next; /* the next free descriptor */
} side;

/* An address with a discriminator of 12 bytes. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 4 + 64];
} address;

static int is_server_killed; /* whether the test kills its server */
static unsigned long test_number; /* the same on both sides, different for each run */

/* Odd numbers are addresses of the server, even ones of the client. */
static address address_of(const side *own, unsigned number) {
    address made;
    VIP_NIC_ATTRIBUTES nic;
    VIP_UINT32 words[3];
    OK(VipQueryNic(own->nic, &nic));
    memset(&made, 0, sizeof made);
    words[0] = number;
    words[1] = (VIP_UINT32)test_number;
    words[2] = (VIP_UINT32)(test_number >> 32);
    made.net.HostAddressLen = nic.NicAddressLen;
    made.net.DiscriminatorLen = sizeof words;
    memcpy(made.bytes + 4, nic.LocalNicAddress, nic.NicAddressLen);
    if (has_hosts()) {
        struct in_addr host = host_of(number % 2 != 0);
        memcpy(made.bytes + 4, &host, 4);
    }
    memcpy(made.bytes + 4 + nic.NicAddressLen, words, sizeof words);
    return made;
}

/* Both sides call this with the same letter. */
static void meet(const side *own, char letter) {
    char found = 0;
    CHECK(write(own->out, &letter, 1) == 1);
    CHECK(read(own->in, &found, 1) == 1);
    CHECK(found == letter);
}

static void tell(const side *own, const void *bytes, size_t len) {
    CHECK(write(own->out, bytes, len) == (ssize_t)len);
}

static void hear(const side *own, void *bytes, size_t len) {
    CHECK(read(own->in, bytes, len) == (ssize_t)len);
}

static void register_memory(side *own, int rdma) {
    VIP_MEM_ATTRIBUTES attributes;
    attributes.Ptag = own->ptag;
    attributes.EnableRdmaWrite = attributes.EnableRdmaRead = rdma;
    if (own->is_allocated) {
        VIP_PVOID found = NULL;
        OK(VipAllocRegisterMem(own->nic, &found, MEMORY, &attributes, &own->handle));
        own->memory = found;
    } else {
        void *found = NULL;
        CHECK(posix_memalign(&found, 4096, MEMORY) == 0);
        memset(found, 0, MEMORY);
        own->memory = found;
        OK(VipRegisterMem(own->nic, own->memory, MEMORY, &attributes, &own->handle));
    }
}

static void release_memory(side *own) {
    if (own->is_allocated) {
        OK(VipFreeRegisteredMem(own->nic, own->memory, own->handle));
    } else {
        OK(VipDeregisterMem(own->nic, own->memory, own->handle));
        free(own->memory);
    }
}

/* Opens a NIC, a tag, memory and a VI. */
static void open_side(side *own, VIP_RELIABILITY_LEVEL level, int rdma) {
    OK(VipOpenNic("nic0", &own->nic));
    OK(VipCreatePtag(own->nic, &own->ptag));
    register_memory(own, rdma);
    memset(&own->attributes, 0, sizeof own->attributes);
    own->attributes.ReliabilityLevel = level;
    own->attributes.MaxTransferSize = MOST_TRANSFER;
    own->attributes.Ptag = own->ptag;
    own->attributes.EnableRdmaWrite = rdma;
    own->attributes.EnableRdmaRead = rdma && level != VIP_SERVICE_UNRELIABLE;
    OK(VipCreateVi(own->nic, &own->attributes, own->send_queue, own->receive_queue, &own->vi));
}

static VIP_VI_STATE state_of(const side *own) {
    VIP_VI_STATE state;
    OK(VipQueryVi(own->vi, &state, NULL, NULL, NULL));
    return state;
}

/* Returns whether the hosts have RDMA devices: then VIPL_TEST_TRANSPORT is `verbs`. */
static int is_over_verbs(void) {
    const char *expected = getenv("VIPL_TEST_TRANSPORT");
    return has_hosts() && expected != NULL && strcmp(expected, "verbs") == 0;
}

/* Checks how a VI is connected. */
static void check_transport(VIP_VI_HANDLE vi) {
    int is_verbs = is_over_verbs();
    VIP_VI_TRANSPORT found;
    char text[512] = "";
    OK(VipQueryViTransport(vi, &found, text, sizeof text));
    /* The other side may have ended the connection already. */
    if (found == VIP_TRANSPORT_NONE) return;
    if (!has_hosts()) CHECK(found == VIP_TRANSPORT_SHARED_MEMORY);
    else if (found != (is_verbs ? VIP_TRANSPORT_VERBS : VIP_TRANSPORT_TCP)) {
        fprintf(stderr, "transport %d: %s\n", (int)found, text);
        CHECK(!"the transport is the expected one");
    }
    CHECK(text[0] != 0);
}

static void connect_side(side *own) {
    address local = address_of(own, own->is_server ? 1 : 2), remote = address_of(own, own->is_server ? 2 : 1);
    VIP_VI_ATTRIBUTES theirs;
    if (own->is_server) {
        address from;
        VIP_CONN_HANDLE connection;
        OK(VipConnectWait(own->nic, &local.net, LIMIT, &from.net, &theirs, &connection));
        OK(VipConnectAccept(connection, own->vi));
        CHECK(memcmp(from.bytes, remote.bytes, 4 + 4 + 12) == 0);
    } else {
        OK(VipConnectRequest(own->vi, &local.net, &remote.net, LIMIT, &theirs));
    }
    check_transport(own->vi);
    CHECK(theirs.ReliabilityLevel == own->attributes.ReliabilityLevel);
    /* The other side may already have caused an error. */
    CHECK(state_of(own) == VIP_STATE_CONNECTED || state_of(own) == VIP_STATE_ERROR);
}

/* Takes what is left in both queues. */
static void drain(side *own) {
    VIP_DESCRIPTOR *descriptor;
    while (VipSendDone(own->vi, &descriptor), descriptor != NULL) continue;
    while (VipRecvDone(own->vi, &descriptor), descriptor != NULL) continue;
}

static void close_side(side *own) {
    OK(VipDisconnect(own->vi));
    CHECK(state_of(own) == VIP_STATE_IDLE);
    drain(own);
    OK(VipDestroyVi(own->vi));
    release_memory(own);
    OK(VipDestroyPtag(own->nic, own->ptag));
    OK(VipCloseNic(own->nic));
}

/* Returns the next descriptor: in the first 64 KiB of the memory, without segments. */
static VIP_DESCRIPTOR *blank(side *own) {
    VIP_DESCRIPTOR *made = (VIP_DESCRIPTOR *)(own->memory + 128 * (own->next++ % 512));
    memset(made, 0, 128);
    return made;
}

static void *data_at(const side *own, unsigned offset) {
    return own->memory + 65536 + offset;
}

static void add(const side *own, VIP_DESCRIPTOR *to, unsigned offset, unsigned len) {
    /* More segments than the type has may follow. */
    VIP_DESCRIPTOR_SEGMENT *first = (VIP_DESCRIPTOR_SEGMENT *)((char *)to + sizeof(VIP_CONTROL_SEGMENT));
    VIP_DESCRIPTOR_SEGMENT *segment = first + to->CS.SegCount++;
    segment->Local.Data.AddressBits = 0;
    segment->Local.Data.Address = data_at(own, offset);
    segment->Local.Handle = own->handle;
    segment->Local.Length = len;
}

/* A descriptor with one segment of the data. */
static VIP_DESCRIPTOR *describe(side *own, unsigned offset, unsigned len) {
    VIP_DESCRIPTOR *made = blank(own);
    add(own, made, offset, len);
    return made;
}

static VIP_DESCRIPTOR *post_receive(side *own, unsigned offset, unsigned len) {
    VIP_DESCRIPTOR *made = describe(own, offset, len);
    OK(VipPostRecv(own->vi, made, own->handle));
    return made;
}

static VIP_DESCRIPTOR *post_send(side *own, unsigned offset, unsigned len) {
    VIP_DESCRIPTOR *made = describe(own, offset, len);
    OK(VipPostSend(own->vi, made, own->handle));
    return made;
}

/* The place of memory that the other side told. */
typedef struct {
    VIP_PVOID address;
    VIP_MEM_HANDLE handle;
} place;

static VIP_DESCRIPTOR *describe_rdma(side *own, int operation, place remote, unsigned offset, unsigned len) {
    VIP_DESCRIPTOR *made = blank(own);
    made->CS.Control = (VIP_UINT16)operation;
    made->CS.SegCount = 1;
    made->DS[0].Remote.Data.AddressBits = 0;
    made->DS[0].Remote.Data.Address = remote.address;
    made->DS[0].Remote.Handle = remote.handle;
    add(own, made, offset, len);
    return made;
}

static place exchange_places(side *own, unsigned offset) {
    place mine, theirs;
    memset(&mine, 0, sizeof mine);
    mine.address = data_at(own, offset);
    mine.handle = own->handle;
    tell(own, &mine, sizeof mine);
    hear(own, &theirs, sizeof theirs);
    return theirs;
}

/* Waits for the next descriptor of the send queue, which must be this one. */
static void sent(side *own, VIP_DESCRIPTOR *expected, VIP_UINT32 status, unsigned len) {
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code = VipSendWait(own->vi, LIMIT, &found);
    CHECK(code == ((status & VIP_STATUS_ERROR_MASK) ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS));
    CHECK(found == expected);
    if (found->CS.Status != (status | VIP_STATUS_DONE)) fprintf(stderr, "status %#x\n", found->CS.Status);
    CHECK(found->CS.Status == (status | VIP_STATUS_DONE) && found->CS.Length == len);
    cover_status("send", found->CS.Status);
}

/* The same for the receive queue. */
static void received(side *own, VIP_DESCRIPTOR *expected, VIP_UINT32 status, unsigned len) {
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code = VipRecvWait(own->vi, LIMIT, &found);
    CHECK(code == ((status & VIP_STATUS_ERROR_MASK) ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS));
    CHECK(found == expected);
    if (found->CS.Status != (status | VIP_STATUS_DONE)) fprintf(stderr, "status %#x\n", found->CS.Status);
    CHECK(found->CS.Status == (status | VIP_STATUS_DONE) && found->CS.Length == len);
    cover_status("receive", found->CS.Status);
}

/* Waits until a state is reached. */
static void await_state(const side *own, VIP_VI_STATE wanted) {
    int left = LIMIT;
    while (state_of(own) != wanted && left-- > 0) usleep(1000);
    CHECK(state_of(own) == wanted);
}

typedef void (*side_function)(side *);

/* Runs the server and the client in processes of their own. */
static void two_processes(const char *name, int is_allocated, side_function run) {
    int to_client[2], to_server[2], status = -1;
    pid_t pids[2];
    int number;
    current = name;
    CHECK(pipe(to_client) == 0 && pipe(to_server) == 0);
    test_number = (unsigned long)getpid() << 32 | (unsigned long)(test_number + 1) % 1000000;
    for (number = 0; number < 2; number++) {
        pids[number] = fork();
        CHECK(pids[number] >= 0);
        if (pids[number] == 0) {
            side own;
            memset(&own, 0, sizeof own);
            own.is_server = number == 0;
            own.out = own.is_server ? to_client[1] : to_server[1];
            own.in = own.is_server ? to_server[0] : to_client[0];
            own.is_allocated = is_allocated;
            /* The other ends are closed, so the end of the other process ends a read. */
            close(own.is_server ? to_client[0] : to_server[0]);
            close(own.is_server ? to_server[1] : to_client[1]);
            alarm(300);
            CHECK(enter_host(own.is_server));
            run(&own);
            _exit(0);
        }
    }
    close(to_client[0]), close(to_client[1]), close(to_server[0]), close(to_server[1]);
    for (number = 0; number < 2; number++) {
        CHECK(waitpid(pids[number], &status, 0) == pids[number]);
        if (number == 0 && is_server_killed) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

#endif
