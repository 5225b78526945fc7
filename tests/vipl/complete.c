/* Completions: queues, waits, callbacks, errors without a descriptor, and threads. */
#include "common.h"

#include <pthread.h>

static int count_of(volatile int *counter) {
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

static void await_count(volatile int *counter, int wanted) {
    int left = LIMIT;
    while (count_of(counter) < wanted && left-- > 0) usleep(1000);
    CHECK(count_of(counter) == wanted);
}

/* "Use both CQs": each entry names the VI and the queue.
 * statement: both-cqs, cq-resize */
static void queues(side *own) {
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *receive, *send = NULL, *found;
    int at, seen[2] = {0, 0};
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    OK(VipDestroyVi(own->vi));
    OK(VipCreateCQ(own->nic, 2, &own->send_queue));
    own->receive_queue = own->send_queue;
    if (own->is_server) OK(VipCreateCQ(own->nic, 2, &own->receive_queue));
    OK(VipCreateVi(own->nic, &own->attributes, own->send_queue, own->receive_queue, &own->vi));
    GIVES(VIP_ERROR_RESOURCE, VipDestroyCQ(own->send_queue));
    receive = post_receive(own, 0, 64);
    connect_side(own);
    send = post_send(own, 1000, 64);
    if (own->is_server) {
        OK(VipCQWait(own->send_queue, LIMIT, &vi, &is_receive));
        CHECK(vi == own->vi && !is_receive);
        OK(VipCQWait(own->receive_queue, LIMIT, &vi, &is_receive));
        CHECK(vi == own->vi && is_receive);
    } else {
        for (at = 0; at < 2; at++) {
            OK(VipCQWait(own->send_queue, LIMIT, &vi, &is_receive));
            CHECK(vi == own->vi);
            seen[is_receive]++;
        }
        CHECK(seen[0] == 1 && seen[1] == 1);
    }
    GIVES(VIP_NOT_DONE, VipCQDone(own->send_queue, &vi, &is_receive));
    OK(VipSendDone(own->vi, &found));
    CHECK(found == send);
    OK(VipRecvDone(own->vi, &found));
    CHECK(found == receive);
    meet(own, 'q');
    /* "Resized while in use": entries stay, and there is room for more. */
    for (at = 0; at < 6; at++) post_receive(own, (unsigned)at * 64, 64);
    meet(own, 'p');
    post_send(own, 1000, 64), post_send(own, 1000, 64);
    sent(own, (VIP_DESCRIPTOR *)(own->memory + 128 * 8), VIP_STATUS_OP_SEND, 64);
    sent(own, (VIP_DESCRIPTOR *)(own->memory + 128 * 9), VIP_STATUS_OP_SEND, 64);
    if (own->is_server) {
        VipRecvWait(own->vi, LIMIT, &found), VipRecvWait(own->vi, LIMIT, &found);
        GIVES(VIP_ERROR_RESOURCE, VipResizeCQ(own->receive_queue, 1));
        OK(VipResizeCQ(own->receive_queue, 5));
        for (at = 0; at < 2; at++) OK(VipCQDone(own->receive_queue, &vi, &is_receive));
    }
    meet(own, 'e');
    OK(VipDisconnect(own->vi));
    drain(own);
    OK(VipDestroyVi(own->vi));
    /* The entries of a VI that is destroyed are gone. */
    GIVES(VIP_NOT_DONE, VipCQDone(own->send_queue, &vi, &is_receive));
    OK(VipDestroyCQ(own->send_queue));
    if (own->is_server) OK(VipDestroyCQ(own->receive_queue));
    OK(VipCloseNic(own->nic));
}

/* One-shot callbacks, which are called in the order in which they were registered.
 * statement: notify-one-shot, notify-order */
static volatile int called, failed;
static side *callback_side;

static void on_descriptor(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor) {
    int number = __atomic_fetch_add(&called, 1, __ATOMIC_SEQ_CST);
    int is_right = context == (char *)0 + number && nic == callback_side->nic && vi == callback_side->vi;
    is_right = is_right && descriptor == (VIP_DESCRIPTOR *)(callback_side->memory + 128 * number);
    if (!is_right || !(descriptor->CS.Status & VIP_STATUS_DONE)) __atomic_store_n(&failed, 1, __ATOMIC_SEQ_CST);
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN is_receive) {
    VIP_DESCRIPTOR *found = NULL;
    int number = __atomic_load_n(&called, __ATOMIC_SEQ_CST);
    if (context != (char *)&called + number || nic != callback_side->nic || vi != callback_side->vi || !is_receive
        || VipRecvDone(vi, &found) != VIP_SUCCESS || found == NULL)
        __atomic_store_n(&failed, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&called, 1, __ATOMIC_SEQ_CST);
}

static void callbacks(side *own) {
    enum { COUNT = 5 };
    int at;
    callback_side = own;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (at = 0; at < COUNT; at++) post_receive(own, (unsigned)at * 64, 64);
    connect_side(own);
    for (at = 0; at < COUNT - 1; at++) OK(VipRecvNotify(own->vi, (char *)0 + at, on_descriptor));
    meet(own, 'n');
    for (at = 0; at < COUNT; at++) post_send(own, 1000, 64);
    await_count(&called, COUNT - 1);
    /* The last message has no callback. */
    received(own, (VIP_DESCRIPTOR *)(own->memory + 128 * (COUNT - 1)), VIP_STATUS_OP_RECEIVE, 64);
    CHECK(!failed && count_of(&called) == COUNT - 1);
    called = COUNT;
    for (at = COUNT; at < 2 * COUNT; at++) OK(VipSendNotify(own->vi, (char *)0 + at, on_descriptor));
    await_count(&called, 2 * COUNT);
    CHECK(!failed);
    meet(own, 'e');
    close_side(own);
}

/* statement: notify-one-shot, notify-order, notify-cancelled */
static void queue_callbacks(side *own) {
    VIP_CQ_HANDLE cancelled;
    int at;
    callback_side = own;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    OK(VipDestroyVi(own->vi));
    OK(VipCreateCQ(own->nic, 16, &own->receive_queue));
    OK(VipCreateVi(own->nic, &own->attributes, NULL, own->receive_queue, &own->vi));
    for (at = 0; at < 4; at++) post_receive(own, (unsigned)at * 64, 64);
    connect_side(own);
    /* "Several queue up in order"; "destroying the CQ cancels them". */
    for (at = 0; at < 3; at++) OK(VipCQNotify(own->receive_queue, (char *)&called + at, on_entry));
    OK(VipCreateCQ(own->nic, 16, &cancelled));
    OK(VipCQNotify(cancelled, NULL, on_entry));
    OK(VipDestroyCQ(cancelled));
    meet(own, 'n');
    for (at = 0; at < 4; at++) post_send(own, 1000, 64);
    await_count(&called, 3);
    CHECK(!failed);
    /* The fourth message has no callback: its entry is still in the queue. */
    {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN is_receive;
        VIP_DESCRIPTOR *found;
        OK(VipCQWait(own->receive_queue, LIMIT, &vi, &is_receive));
        CHECK(vi == own->vi && is_receive);
        OK(VipRecvDone(own->vi, &found));
        GIVES(VIP_NOT_DONE, VipCQDone(own->receive_queue, &vi, &is_receive));
    }
    meet(own, 'e');
    /* Callbacks of a queue that is destroyed are cancelled: neither the next messages nor the end calls them. */
    OK(VipDisconnect(own->vi));
    drain(own);
    for (at = 0; at < 2; at++) OK(VipCQNotify(own->receive_queue, NULL, on_entry));
    OK(VipDestroyVi(own->vi));
    OK(VipDestroyCQ(own->receive_queue));
    own->receive_queue = NULL;
    OK(VipCreateVi(own->nic, &own->attributes, NULL, NULL, &own->vi));
    post_receive(own, 0, 64);
    connect_side(own);
    post_send(own, 1000, 64);
    CHECK(VipRecvWait(own->vi, LIMIT, &(VIP_DESCRIPTOR *){NULL}) == VIP_SUCCESS);
    meet(own, 'f');
    CHECK(!failed && count_of(&called) == 3);
    close_side(own);
}

/* Errors that no descriptor reports.
 * statement: error-codes, error-resources */
static volatile int errors[16];
static volatile int overruns;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    side *own = context;
    if (error->NicHandle != own->nic || (error->ViHandle != own->vi && error->ViHandle != NULL)) _exit(3);
    if (error->ErrorCode == VIP_ERROR_VI_OVERRUN && error->ResourceCode == VIP_RESOURCE_CQ
        && error->CQHandle == own->receive_queue)
        __atomic_fetch_add(&overruns, 1, __ATOMIC_SEQ_CST);
    if (error->ErrorCode == VIP_ERROR_CONN_LOST && error->ResourceCode != VIP_RESOURCE_VI) _exit(4);
    __atomic_fetch_add(&errors[error->ErrorCode & 15], 1, __ATOMIC_SEQ_CST);
}

static void async_errors(side *own) {
    VIP_DESCRIPTOR *made;
    place remote;
    int at;
    open_side(own, VIP_SERVICE_UNRELIABLE, 1);
    OK(VipErrorCallback(own->nic, own, on_error));
    OK(VipDestroyVi(own->vi));
    OK(VipCreateCQ(own->nic, 2, &own->receive_queue));
    OK(VipCreateVi(own->nic, &own->attributes, NULL, own->receive_queue, &own->vi));
    connect_side(own);
    remote = exchange_places(own, 0);
    /* RECVQ_EMPTY: messages that are dropped. */
    if (!own->is_server) {
        for (at = 0; at < 2; at++) sent(own, post_send(own, 0, 4), VIP_STATUS_OP_SEND, 4);
    } else {
        await_count(&errors[VIP_ERROR_RECVQ_EMPTY], 2);
    }
    meet(own, 'r');
    /* VI_OVERRUN: more completions than the queue has room; none of the descriptors is lost. */
    if (own->is_server) {
        for (at = 0; at < 4; at++) post_receive(own, 0, 4);
        meet(own, 'o');
        await_count(&overruns, 2);
        for (at = 0; at < 4; at++) OK(VipRecvWait(own->vi, LIMIT, &made));
    } else {
        meet(own, 'o');
        for (at = 0; at < 4; at++) sent(own, post_send(own, 0, 4), VIP_STATUS_OP_SEND, 4);
    }
    meet(own, 'p');
    OK(VipDisconnect(own->vi));
    drain(own);
    meet(own, 'd');
    /* CONN_LOST, with the state; COMP_PROT: the memory of a descriptor is gone when it is finished. */
    connect_side(own);
    if (own->is_server) {
        VIP_MEM_ATTRIBUTES attributes;
        VIP_MEM_HANDLE handle;
        VIP_PVOID memory;
        memset(&attributes, 0, sizeof attributes);
        attributes.Ptag = own->ptag;
        OK(VipAllocRegisterMem(own->nic, &memory, 4096, &attributes, &handle));
        OK(VipPostRecv(own->vi, memory, handle));
        OK(VipFreeRegisteredMem(own->nic, memory, handle));
        meet(own, 'c');
        await_state(own, VIP_STATE_ERROR);
        await_count(&errors[VIP_ERROR_COMP_PROT], 1);
        CHECK(count_of(&errors[VIP_ERROR_CONN_LOST]) >= 1);
    } else {
        meet(own, 'c');
        OK(VipDisconnect(own->vi));
    }
    meet(own, 'e');
    (void)remote;
    OK(VipDisconnect(own->vi));
    drain(own);
    OK(VipCloseNic(own->nic));
}

/* "RecvDone must not block behind a RecvWait of another thread."
 * statement: recv-done-beside-wait */
static volatile int is_waiting;

static void *wait_for_message(void *argument) {
    side *own = argument;
    VIP_DESCRIPTOR *found;
    __atomic_store_n(&is_waiting, 1, __ATOMIC_SEQ_CST);
    OK(VipRecvWait(own->vi, VIP_INFINITE, &found));
    return found;
}

static void done_beside_wait(side *own) {
    VIP_DESCRIPTOR *receive, *found;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    receive = post_receive(own, 0, 64);
    connect_side(own);
    if (own->is_server) {
        pthread_t thread;
        void *result;
        int at;
        CHECK(pthread_create(&thread, NULL, wait_for_message, own) == 0);
        await_count(&is_waiting, 1);
        /* The message is sent only afterwards: if one of these calls waited for it, the test would not end. */
        for (at = 0; at < 2000; at++) {
            GIVES(VIP_NOT_DONE, VipRecvDone(own->vi, &found));
            GIVES(VIP_DESCRIPTOR_ERROR, VipSendDone(own->vi, &found));
            if (at % 100 == 0) usleep(1000);
        }
        meet(own, 'm');
        CHECK(pthread_join(thread, &result) == 0 && result == receive);
    } else {
        meet(own, 'm');
        sent(own, post_send(own, 1000, 64), VIP_STATUS_OP_SEND, 64);
    }
    meet(own, 'e');
    close_side(own);
}

/* Threads that send, receive and look at the same VI, and at others of the same process. */
enum { THREADS = 4, EACH = 400, EACH_QUICK = 40 };

typedef struct {
    side *own;
    int number;
} worker;

static void *work(void *argument) {
    worker *self = argument;
    side mine = *self->own;
    /* Threads that wait for each other are slow in an emulated machine. */
    int at, each = getenv("NEMESIA_QUICK") ? EACH_QUICK : EACH;
    mine.is_server = self->own->is_server;
    OK(VipCreateVi(mine.nic, &mine.attributes, NULL, NULL, &mine.vi));
    mine.next = (unsigned)self->number * 32;
    for (at = 0; at < 4; at++) post_receive(&mine, (unsigned)(self->number * 8 + at) * 64, 64);
    {
        address local = address_of(&mine, 100 + (unsigned)(self->number * 2 + mine.is_server));
        address remote = address_of(&mine, 100 + (unsigned)(self->number * 2 + !mine.is_server));
        OK(VipConnectPeerRequest(mine.vi, &local.net, &remote.net, LIMIT));
        OK(VipConnectPeerWait(mine.vi, NULL));
    }
    for (at = 0; at < each; at++) {
        VIP_DESCRIPTOR *found, *send;
        mine.next = (unsigned)self->number * 32 + 16;
        if (mine.is_server) {
            OK(VipRecvWait(mine.vi, LIMIT, &found));
            CHECK(found->CS.Length == (VIP_UINT32)(at % 65));
            OK(VipPostRecv(mine.vi, found, mine.handle));
        }
        send = post_send(&mine, 8192 + (unsigned)self->number * 64, (unsigned)at % 65);
        sent(&mine, send, VIP_STATUS_OP_SEND, (unsigned)at % 65);
        if (!mine.is_server) {
            OK(VipRecvWait(mine.vi, LIMIT, &found));
            CHECK(found->CS.Length == (VIP_UINT32)(at % 65));
            OK(VipPostRecv(mine.vi, found, mine.handle));
        }
    }
    /* The other side has read everything that this one sent. */
    if (mine.is_server) await_state(&mine, VIP_STATE_ERROR);
    OK(VipDisconnect(mine.vi));
    drain(&mine);
    OK(VipDestroyVi(mine.vi));
    return NULL;
}

static void threads(side *own) {
    pthread_t all[THREADS];
    worker workers[THREADS];
    int at;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (at = 0; at < THREADS; at++) {
        workers[at].own = own;
        workers[at].number = at;
        CHECK(pthread_create(&all[at], NULL, work, &workers[at]) == 0);
    }
    for (at = 0; at < THREADS; at++) CHECK(pthread_join(all[at], NULL) == 0);
    close_side(own);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        side_function run;
    } cases[] = {
        {"queues", queues},             {"callbacks", callbacks},
        {"queue-callbacks", queue_callbacks}, {"async-errors", async_errors},
        {"done-beside-wait", done_beside_wait}, {"threads", threads},
    };
    size_t at;
    int is_allocated;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (count > 1 && strcmp(arguments[1], cases[at].name) != 0) continue;
        for (is_allocated = 0; is_allocated < 2; is_allocated++) {
            two_processes(cases[at].name, is_allocated, cases[at].run);
            printf("%s: %s memory\n", cases[at].name, is_allocated ? "allocated" : "user");
        }
    }
    return 0;
}
