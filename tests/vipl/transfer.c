/* Data transfers between two processes: each operation, each status bit, each reliability level, with user memory and
 * with allocated memory. `transfer CASE`; each case names the statement of vipl that it tests. */
#include "common.h"

#include <dirent.h>

#define RECEIVED VIP_STATUS_OP_RECEIVE

static VIP_RELIABILITY_LEVEL level = VIP_SERVICE_RELIABLE_DELIVERY;

/* "Programs pre-post receives before connecting; use 12-byte discriminators."
 * statement: prepost, discriminator-12, operation-send, status-done, reliability-levels */
static void send_and_receive(side *own) {
    VIP_DESCRIPTOR *receive, *send;
    int round;
    open_side(own, level, 0);
    receive = post_receive(own, 0, 4096);
    connect_side(own);
    for (round = 0; round < 100; round++) {
        unsigned len = (unsigned)(round * 37 % 4097);
        if (own->is_server == round % 2) {
            memset(data_at(own, 8192), round + 1, len);
            send = post_send(own, 8192, len);
            sent(own, send, VIP_STATUS_OP_SEND, len);
        } else {
            unsigned at;
            received(own, receive, RECEIVED, len);
            for (at = 0; at < len; at++) CHECK(((char *)data_at(own, 0))[at] == round + 1);
            receive = post_receive(own, 0, 4096);
        }
        meet(own, 'r');
    }
    close_side(own);
}

/* Gather and scatter lists.
 * statement: more-segments */
static void lists(side *own) {
    VIP_DESCRIPTOR *made;
    open_side(own, level, 0);
    if (own->is_server) {
        made = blank(own);
        add(own, made, 0, 3), add(own, made, 100, 0), add(own, made, 200, 10), add(own, made, 300, 5);
        OK(VipPostRecv(own->vi, made, own->handle));
        connect_side(own);
        received(own, made, RECEIVED, 15);
        CHECK(memcmp(data_at(own, 0), "abc", 3) == 0 && memcmp(data_at(own, 200), "defghijklm", 10) == 0);
        CHECK(memcmp(data_at(own, 300), "no\0", 3) == 0);
    } else {
        connect_side(own);
        memcpy(data_at(own, 0), "abcde", 5);
        memcpy(data_at(own, 50), "fghijklmno", 10);
        made = blank(own);
        add(own, made, 0, 5), add(own, made, 50, 10);
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_OP_SEND, 15);
    }
    meet(own, 'e');
    close_side(own);
}

/* "Use negative immediates."
 * statement: immediate-negative, immediate */
static void immediate(side *own) {
    VIP_DESCRIPTOR *made;
    open_side(own, level, 0);
    made = own->is_server ? post_receive(own, 0, 16) : NULL;
    connect_side(own);
    if (own->is_server) {
        received(own, made, RECEIVED | VIP_STATUS_IMMEDIATE, 0);
        CHECK((int)made->CS.ImmediateData == -7);
    } else {
        made = blank(own);
        made->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
        made->CS.ImmediateData = (VIP_UINT32)-7;
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_OP_SEND, 0);
    }
    meet(own, 'e');
    close_side(own);
}

/* "Use RDMA write with and without immediate": only with immediate it consumes a receive descriptor.
 * statement: operation-rdma-write, rdma-write-immediate, rdma-write-plain */
static void rdma_write(side *own) {
    VIP_DESCRIPTOR *made;
    place remote;
    open_side(own, level, 1);
    made = own->is_server ? post_receive(own, 0, 0) : NULL;
    connect_side(own);
    remote = exchange_places(own, 1000);
    if (own->is_server) {
        received(own, made, VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE, 6);
        CHECK((int)made->CS.ImmediateData == -1);
        CHECK(memcmp(data_at(own, 1000), "second", 6) == 0);
        CHECK(memcmp(data_at(own, 1006), "rite", 5) == 0);
    } else {
        memcpy(data_at(own, 0), "firstwrite", 11);
        made = describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE, remote, 0, 11);
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_OP_RDMA_WRITE, 11);
        memcpy(data_at(own, 100), "second", 6);
        made = describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, remote, 100, 6);
        made->CS.ImmediateData = (VIP_UINT32)-1;
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_OP_RDMA_WRITE, 6);
    }
    meet(own, 'e');
    close_side(own);
}

/* RDMA read, and a fence after it. With user memory through the shadow, or through the kernel.
 * statement: operation-rdma-read, queue-fence */
static void rdma_read(side *own) {
    VIP_DESCRIPTOR *read, *made = NULL;
    place remote;
    int kernel;
    open_side(own, level, 1);
    for (kernel = 0; kernel < (own->is_allocated ? 1 : 2); kernel++) {
        if (!own->is_allocated) OK(VipSetMemReadable(own->nic, own->memory, own->handle, kernel));
        memcpy(data_at(own, 1000), own->is_server ? "of the server" : "of the client", 14);
        if (own->is_server) made = post_receive(own, 0, 16);
        connect_side(own);
        remote = exchange_places(own, 1000);
        if (own->is_server) {
            received(own, made, RECEIVED, 3);
            CHECK(memcmp(data_at(own, 0), "of ", 3) == 0);
        } else {
            read = describe_rdma(own, VIP_CONTROL_OP_RDMAREAD, remote, 500, 14);
            OK(VipPostSend(own->vi, read, own->handle));
            made = describe(own, 500, 3);
            made->CS.Control = VIP_CONTROL_QFENCE;
            OK(VipPostSend(own->vi, made, own->handle));
            sent(own, read, VIP_STATUS_OP_RDMA_READ, 14);
            sent(own, made, VIP_STATUS_OP_SEND, 3);
            CHECK(memcmp(data_at(own, 500), "of the server", 14) == 0);
        }
        meet(own, 'e');
        OK(VipDisconnect(own->vi));
        meet(own, 'd');
    }
    close_side(own);
}

/* VIP_STATUS_FORMAT_ERROR, PROTECTION and LENGTH of the own descriptor: the connection stays unless it is reliable.
 * statement: status-format, status-protection, status-length, control-reserved, max-transfer */
static void local_faults(side *own) {
    int fault;
    open_side(own, level, 0);
    for (fault = 0; fault < 5; fault++) {
        VIP_DESCRIPTOR *made;
        VIP_UINT32 status = VIP_STATUS_FORMAT_ERROR;
        connect_side(own);
        if (!own->is_server) {
            made = describe(own, 0, 4);
            if (fault == 0) made->CS.Control = 0x10;
            if (fault == 1) made->CS.Control = VIP_CONTROL_OP_RESERVED;
            if (fault == 2) made->DS[0].Local.Handle ^= 1 << 20, status = VIP_STATUS_PROTECTION_ERROR;
            if (fault == 4) made->CS.SegCount = 253;
            if (fault == 3) made->DS[0].Local.Length = MOST_TRANSFER + 1, status = VIP_STATUS_LENGTH_ERROR;
            OK(VipPostSend(own->vi, made, own->handle));
            sent(own, made, status, 0);
            CHECK(state_of(own) == (level == VIP_SERVICE_UNRELIABLE ? VIP_STATE_CONNECTED : VIP_STATE_ERROR));
        }
        meet(own, 'f');
        if (level != VIP_SERVICE_UNRELIABLE) await_state(own, VIP_STATE_ERROR);
        meet(own, 'g');
        OK(VipDisconnect(own->vi));
        meet(own, 'h');
    }
    close_side(own);
}

/* "Ptags of the VI and of the memory must match, for descriptors and for buffers."
 * statement: ptag-descriptor, ptag-buffer */
static void ptags(side *own) {
    VIP_PROTECTION_HANDLE other;
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle;
    VIP_PVOID memory;
    VIP_DESCRIPTOR *made;
    open_side(own, level, 0);
    OK(VipCreatePtag(own->nic, &other));
    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = other;
    OK(VipAllocRegisterMem(own->nic, &memory, 4096, &attributes, &handle));
    connect_side(own);
    if (!own->is_server) {
        memset(memory, 0, 64);
        GIVES(VIP_INVALID_PARAMETER, VipPostSend(own->vi, memory, handle));
        GIVES(VIP_INVALID_PARAMETER, VipPostRecv(own->vi, memory, handle));
        made = describe(own, 0, 4);
        made->DS[0].Local.Data.Address = memory;
        made->DS[0].Local.Handle = handle;
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_PROTECTION_ERROR, 0);
    } else if (level == VIP_SERVICE_UNRELIABLE) {
        /* The connection goes on: a receive buffer with the tag is refused in the same way. */
        made = describe(own, 0, 4);
        made->DS[0].Local.Data.Address = memory;
        made->DS[0].Local.Handle = handle;
        OK(VipPostRecv(own->vi, made, own->handle));
        received(own, made, RECEIVED | VIP_STATUS_PROTECTION_ERROR, 0);
    }
    meet(own, 'e');
    OK(VipFreeRegisteredMem(own->nic, memory, handle));
    OK(VipDestroyPtag(own->nic, other));
    close_side(own);
}

/* A faulty receive descriptor: PROTECTION at the receiver, and at the sender an end of the connection.
 * statement: status-protection */
static void receive_fault(side *own) {
    VIP_DESCRIPTOR *made = NULL;
    open_side(own, level, 0);
    if (own->is_server) {
        made = describe(own, 0, 4);
        made->DS[0].Local.Data.Address = own->memory + MEMORY;
        OK(VipPostRecv(own->vi, made, own->handle));
    }
    connect_side(own);
    if (own->is_server) received(own, made, RECEIVED | VIP_STATUS_PROTECTION_ERROR, 0);
    if (level != VIP_SERVICE_UNRELIABLE) await_state(own, VIP_STATE_ERROR);
    meet(own, 'e');
    close_side(own);
}

/* "The size of the receive buffers has to be larger or equal": LENGTH at the receiver, REMOTE_DESC at the sender.
 * statement: status-length, status-remote-descriptor */
static void too_long(side *own) {
    VIP_DESCRIPTOR *made = NULL;
    open_side(own, level, 0);
    if (own->is_server) made = post_receive(own, 0, 3);
    connect_side(own);
    if (own->is_server) {
        received(own, made, RECEIVED | VIP_STATUS_LENGTH_ERROR, 0);
    } else {
        made = post_send(own, 0, 4);
        if (level == VIP_SERVICE_UNRELIABLE) sent(own, made, VIP_STATUS_OP_SEND, 4);
        else sent(own, made, VIP_STATUS_REMOTE_DESC_ERROR, 0);
    }
    if (level != VIP_SERVICE_UNRELIABLE) await_state(own, VIP_STATE_ERROR);
    meet(own, 'e');
    close_side(own);
}

/* "The receive descriptor has to be posted prior": REMOTE_DESC, or dropped if unreliable.
 * statement: status-remote-descriptor */
static void no_receive(side *own) {
    VIP_DESCRIPTOR *made;
    open_side(own, level, 0);
    connect_side(own);
    if (!own->is_server) {
        made = post_send(own, 0, 4);
        if (level == VIP_SERVICE_UNRELIABLE) sent(own, made, VIP_STATUS_OP_SEND, 4);
        else sent(own, made, VIP_STATUS_REMOTE_DESC_ERROR, 0);
    }
    if (level != VIP_SERVICE_UNRELIABLE) await_state(own, VIP_STATE_ERROR);
    meet(own, 'e');
    close_side(own);
}

/* RDMA_PROT: memory without the right, a VI without the right, beyond the end, a stale handle.
 * statement: status-rdma-protection, rdma-rights */
static void rdma_protection(side *own) {
    int fault, operation;
    open_side(own, level, 1);
    for (operation = VIP_CONTROL_OP_RDMAWRITE; operation <= VIP_CONTROL_OP_RDMAREAD; operation++) {
        for (fault = 0; fault < 4; fault++) {
            VIP_MEM_ATTRIBUTES memory;
            VIP_DESCRIPTOR *made;
            place remote;
            memory.Ptag = own->ptag;
            memory.EnableRdmaWrite = memory.EnableRdmaRead = fault != 0;
            OK(VipSetMemAttributes(own->nic, own->memory, own->handle, &memory));
            own->attributes.EnableRdmaWrite = own->attributes.EnableRdmaRead = fault != 1;
            OK(VipSetViAttributes(own->vi, &own->attributes));
            connect_side(own);
            remote = exchange_places(own, 0);
            if (fault == 2) remote.address = (char *)remote.address + MEMORY - 65536 - 3;
            if (fault == 3) remote.handle ^= 1 << 20;
            if (!own->is_server) {
                VIP_UINT32 bits =
                    operation == VIP_CONTROL_OP_RDMAREAD ? VIP_STATUS_OP_RDMA_READ : VIP_STATUS_OP_RDMA_WRITE;
                made = describe_rdma(own, operation, remote, 0, 4);
                OK(VipPostSend(own->vi, made, own->handle));
                sent(own, made, VIP_STATUS_RDMA_PROT_ERROR | bits, 0);
            }
            if (level != VIP_SERVICE_UNRELIABLE) await_state(own, VIP_STATE_ERROR);
            meet(own, 'e');
            OK(VipDisconnect(own->vi));
            meet(own, 'f');
        }
    }
    close_side(own);
}

/* "Descriptors flushed on disconnect or error": DESC_FLUSHED, also for sends without a connection.
 * statement: status-flushed */
static void flushed(side *own) {
    VIP_DESCRIPTOR *made, *other;
    open_side(own, level, 0);
    made = post_send(own, 0, 4);
    sent(own, made, VIP_STATUS_DESC_FLUSHED_ERROR, 0);
    made = post_receive(own, 0, 4);
    other = post_receive(own, 0, 4);
    connect_side(own);
    meet(own, 'c');
    if (own->is_server) OK(VipDisconnect(own->vi));
    else await_state(own, VIP_STATE_ERROR);
    received(own, made, RECEIVED | VIP_STATUS_DESC_FLUSHED_ERROR, 0);
    received(own, other, RECEIVED | VIP_STATUS_DESC_FLUSHED_ERROR, 0);
    if (!own->is_server) {
        made = post_receive(own, 0, 4);
        received(own, made, RECEIVED | VIP_STATUS_DESC_FLUSHED_ERROR, 0);
        made = post_send(own, 0, 4);
        sent(own, made, VIP_STATUS_DESC_FLUSHED_ERROR, 0);
    }
    meet(own, 'e');
    close_side(own);
}

/* Stops a process and waits until each of its threads has stopped. */
static void stop_process(pid_t pid) {
    char path[300];
    int running = 1, left = LIMIT;
    CHECK(kill(pid, SIGSTOP) == 0);
    while (running && left-- > 0) {
        struct dirent *entry;
        DIR *tasks;
        snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
        tasks = opendir(path);
        CHECK(tasks != NULL);
        running = 0;
        while ((entry = readdir(tasks)) != NULL) {
            char text[512] = "", *state;
            FILE *file;
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, entry->d_name);
            file = fopen(path, "r");
            if (file == NULL) continue;
            (void)!fread(text, 1, sizeof text - 1, file);
            fclose(file);
            state = strrchr(text, ')');
            if (state == NULL || state[2] != 'T') running = 1;
        }
        closedir(tasks);
        usleep(1000);
    }
    CHECK(!running);
}

/* TRANSPORT: a transfer is in progress when the other process ends.
 * statement: status-transport */
static void transport(side *own) {
    VIP_DESCRIPTOR *made;
    place remote;
    /* Memory that this process can map, or that a device reads, needs nobody to answer. */
    int is_mapped = (own->is_allocated && !has_hosts()) || is_over_verbs();
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    if (!own->is_allocated) OK(VipSetMemReadable(own->nic, own->memory, own->handle, VIP_FALSE));
    connect_side(own);
    remote = exchange_places(own, 0);
    if (own->is_server) {
        pid_t pid = getpid();
        tell(own, &pid, sizeof pid);
        /* No thread of this process answers any more. */
        for (;;) pause();
    } else {
        pid_t pid;
        hear(own, &pid, sizeof pid);
        stop_process(pid);
        made = describe_rdma(own, VIP_CONTROL_OP_RDMAREAD, remote, 0, 4);
        OK(VipPostSend(own->vi, made, own->handle));
        if (is_mapped) {
            sent(own, made, VIP_STATUS_OP_RDMA_READ, 4);
        } else {
            VIP_DESCRIPTOR *found;
            GIVES(VIP_NOT_DONE, VipSendDone(own->vi, &found));
            CHECK(found == NULL);
            GIVES(VIP_TIMEOUT, VipSendWait(own->vi, 20, &found));
            CHECK(found == NULL);
        }
        CHECK(kill(pid, SIGKILL) == 0);
        if (!is_mapped) sent(own, made, VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_OP_RDMA_READ, 0);
        await_state(own, VIP_STATE_ERROR);
        close_side(own);
    }
}

/* More messages than are mirrored, of many sizes, in both directions at once. */
static void stream(side *own) {
    enum { WINDOW = 100 };
    /* The virtual machine with RDMA devices is slow. */
    const int COUNT = is_over_verbs() ? 400 : 3000;
    int posted = 0, done = 0, arrived = 0, at;
    VIP_DESCRIPTOR *found;
    open_side(own, level, 0);
    for (at = 0; at < WINDOW; at++) post_receive(own, (unsigned)at * 1024, 1024);
    connect_side(own);
    while (done < COUNT || arrived < COUNT) {
        if (posted < COUNT && posted - arrived < WINDOW / 2 && posted - done < WINDOW) {
            unsigned offset = 200000 + (unsigned)(posted % WINDOW) * 1024, len = (unsigned)(posted * 7 % 1024) + 1;
            /* The first descriptors belong to the receive queue. */
            own->next = WINDOW + (unsigned)posted % WINDOW;
            memset(data_at(own, offset), posted % 251, len);
            post_send(own, offset, len);
            posted++;
        }
        while (VipSendDone(own->vi, &found) == VIP_SUCCESS) done++;
        while (VipRecvDone(own->vi, &found) == VIP_SUCCESS) {
            char *bytes = found->DS[0].Local.Data.Address;
            unsigned len = (unsigned)(arrived * 7 % 1024) + 1;
            CHECK(found->CS.Status == (RECEIVED | VIP_STATUS_DONE) && found->CS.Length == len);
            CHECK(bytes[0] == (char)(arrived % 251) && bytes[len - 1] == (char)(arrived % 251));
            found->CS.Status = 0;
            OK(VipPostRecv(own->vi, found, own->handle));
            arrived++;
        }
    }
    meet(own, 'e');
    close_side(own);
}

/* As many segments as a descriptor may have, on both sides: each byte has a segment of its own.
 * statement: more-segments */
static void most_segments(side *own) {
    enum { COUNT = 252, PLACE = 512 * 1024 };
    VIP_NIC_ATTRIBUTES nic;
    VIP_DESCRIPTOR *made;
    unsigned at;
    open_side(own, level, 0);
    OK(VipQueryNic(own->nic, &nic));
    CHECK(nic.MaxSegmentsPerDesc == COUNT);
    made = (VIP_DESCRIPTOR *)(own->memory + PLACE);
    memset(made, 0, 32 + 16 * COUNT);
    /* The receiver scatters the bytes from the last place to the first. */
    for (at = 0; at < COUNT; at++) add(own, made, own->is_server ? 2 * (COUNT - 1 - at) : 2 * at, 1);
    if (own->is_server) OK(VipPostRecv(own->vi, made, own->handle));
    connect_side(own);
    if (own->is_server) {
        received(own, made, RECEIVED, COUNT);
        for (at = 0; at < COUNT; at++) CHECK(((char *)data_at(own, 2 * (COUNT - 1 - at)))[0] == (char)(at + 1));
    } else {
        for (at = 0; at < COUNT; at++) ((char *)data_at(own, 2 * at))[0] = (char)(at + 1);
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_OP_SEND, COUNT);
    }
    meet(own, 'e');
    close_side(own);
}

/* "Reuse CS.Next of unposted descriptors for their own lists": the library neither follows nor changes it.
 * statement: next-reuse */
static void next_lists(side *own) {
    enum { COUNT = 8 };
    VIP_DESCRIPTOR *list = NULL, *made, *next;
    int round, at;
    open_side(own, level, 0);
    for (at = 0; at < COUNT; at++) {
        made = describe(own, 0, 16);
        made->CS.Next.Descriptor = list;
        made->CS.NextHandle = (VIP_MEM_HANDLE)at;
        list = made;
    }
    if (own->is_server) {
        /* Posted, each still refers to the next one of its list. */
        for (made = list; made != NULL; made = made->CS.Next.Descriptor) OK(VipPostRecv(own->vi, made, own->handle));
    }
    connect_side(own);
    for (round = 0, made = list; round < COUNT; round++, made = next) {
        next = made->CS.Next.Descriptor;
        if (own->is_server) {
            received(own, made, RECEIVED, (unsigned)round);
        } else {
            made->DS[0].Local.Length = (VIP_UINT32)round;
            OK(VipPostSend(own->vi, made, own->handle));
            sent(own, made, VIP_STATUS_OP_SEND, (unsigned)round);
        }
        CHECK(made->CS.Next.Descriptor == next && made->CS.NextHandle == (VIP_MEM_HANDLE)(COUNT - 1 - round));
    }
    CHECK(made == NULL);
    meet(own, 'e');
    close_side(own);
}

/* Each reserved bit of the control word is a format error; an unreliable connection goes on after it.
 * statement: control-reserved */
static void reserved_bits(side *own) {
    unsigned bit;
    VIP_DESCRIPTOR *made;
    open_side(own, level, 0);
    connect_side(own);
    for (bit = 0x10; bit <= 0x8000; bit <<= 1) {
        CHECK(VIP_CONTROL_RESERVED & bit);
        made = describe(own, 0, 4);
        made->CS.Control = (VIP_UINT16)bit;
        OK(VipPostSend(own->vi, made, own->handle));
        sent(own, made, VIP_STATUS_FORMAT_ERROR, 0);
        made->CS.Status = 0;
        OK(VipPostRecv(own->vi, made, own->handle));
        received(own, made, RECEIVED | VIP_STATUS_FORMAT_ERROR, 0);
    }
    CHECK(state_of(own) == VIP_STATE_CONNECTED);
    meet(own, 'e');
    close_side(own);
}

/* A right to read is withdrawn and given back while messages arrive in the same memory.
 * statement: rdma-rights */
static void withdrawn(side *own) {
    enum { ROUNDS = 8, COUNT = 48, BYTES = 1024 };
    int round, at;
    VIP_DESCRIPTOR *found;
    open_side(own, level, 1);
    connect_side(own);
    for (round = 0; round < ROUNDS; round++) {
        own->next = 0;
        if (own->is_server) {
            VIP_MEM_ATTRIBUTES memory;
            memory.Ptag = own->ptag;
            memory.EnableRdmaWrite = 1;
            for (at = 0; at < COUNT; at++) post_receive(own, (unsigned)at * BYTES, BYTES);
            meet(own, 'p');
            for (at = 0; at < COUNT; at++) {
                memory.EnableRdmaRead = at % 2;
                OK(VipSetMemAttributes(own->nic, own->memory, own->handle, &memory));
                OK(VipRecvWait(own->vi, LIMIT, &found));
                CHECK(found->CS.Length == BYTES && *(char *)data_at(own, (unsigned)(at * BYTES + 7)) == (char)(at + 1));
            }
        } else {
            meet(own, 'p');
            for (at = 0; at < COUNT; at++) {
                memset(data_at(own, (unsigned)at * BYTES), at + 1, BYTES);
                post_send(own, (unsigned)at * BYTES, BYTES);
            }
            for (at = 0; at < COUNT; at++) OK(VipSendWait(own->vi, LIMIT, &found));
        }
        meet(own, 'r');
    }
    CHECK(state_of(own) == VIP_STATE_CONNECTED);
    meet(own, 'e');
    close_side(own);
}

typedef struct {
    const char *name;
    side_function run;
    int levels; /* the reliability levels at which it runs */
} test_case;

static const test_case cases[] = {
    {"send-and-receive", send_and_receive, 7}, {"lists", lists, 7},
    {"immediate", immediate, 7},               {"rdma-write", rdma_write, 7},
    {"rdma-read", rdma_read, 6},               {"local-faults", local_faults, 7},
    {"ptags", ptags, 7},                       {"receive-fault", receive_fault, 7},
    {"too-long", too_long, 7},                 {"no-receive", no_receive, 7},
    {"rdma-protection", rdma_protection, 6},   {"flushed", flushed, 7},
    {"transport", transport, 2},               {"stream", stream, 6},
    {"most-segments", most_segments, 7},       {"next-lists", next_lists, 7},
    {"reserved-bits", reserved_bits, 1},       {"withdrawn", withdrawn, 2},
};

int main(int count, char **arguments) {
    size_t at;
    int is_allocated, bit, found = 0;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (count > 1 && strcmp(arguments[1], cases[at].name) != 0) continue;
        for (bit = 1; bit <= 4; bit *= 2) {
            for (is_allocated = 0; is_allocated < 2; is_allocated++) {
                if (!(cases[at].levels & bit)) continue;
                level = (VIP_RELIABILITY_LEVEL)bit;
                is_server_killed = cases[at].run == transport;
                two_processes(cases[at].name, is_allocated, cases[at].run);
                printf("%s: level %d, %s memory\n", cases[at].name, bit, is_allocated ? "allocated" : "user");
                found++;
            }
        }
    }
    return found > 0 ? 0 : 2;
}
