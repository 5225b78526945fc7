/* The interface as a program sees it at compile time: signatures, types, offsets, constants. And a child process, in
 * which every function returns VIP_ERROR_RESOURCE. */
#include "common.h"

#include <stddef.h>

static void must(int condition, const char *text) {
    if (condition) return;
    fprintf(stderr, "case %s: %s\n", current, text);
    _exit(1);
}

/* Checks that a function has exactly this type. */
#define HAS_TYPE(name, ...) must(__builtin_types_compatible_p(__typeof__(&name), __typeof__(__VA_ARGS__)), #name)
/* Checks the offset of a member. */
#define AT(type, member, offset) must(offsetof(type, member) == (offset), #type "." #member)
#define IS_TYPE(type, other) __builtin_types_compatible_p(type, other)

typedef VIP_NIC_HANDLE nic_t;
typedef VIP_VI_HANDLE vi_t;
typedef VIP_CQ_HANDLE cq_t;
typedef VIP_MEM_HANDLE mem_t;
typedef VIP_RETURN (*of_nic)(nic_t);
typedef VIP_RETURN (*of_vi)(vi_t);
typedef VIP_RETURN (*of_memory)(nic_t, VIP_PVOID, mem_t);
typedef VIP_RETURN (*of_memory_attributes)(nic_t, VIP_PVOID, mem_t, VIP_MEM_ATTRIBUTES *);
typedef VIP_RETURN (*post_function)(vi_t, VIP_DESCRIPTOR *, mem_t);
typedef VIP_RETURN (*done_function)(vi_t, VIP_DESCRIPTOR **);
typedef VIP_RETURN (*wait_function)(vi_t, VIP_ULONG, VIP_DESCRIPTOR **);
typedef void (*vi_callback)(VIP_PVOID, nic_t, vi_t, VIP_DESCRIPTOR *);
typedef void (*cq_callback)(VIP_PVOID, nic_t, vi_t, VIP_BOOLEAN);
typedef VIP_RETURN (*notify_function)(vi_t, VIP_PVOID, vi_callback);

/* statement: signatures */
static void connection_signatures(void) {
    HAS_TYPE(VipConnectWait, VIP_RETURN (*)(nic_t, VIP_NET_ADDRESS *, VIP_ULONG, VIP_NET_ADDRESS *,
                                            VIP_VI_ATTRIBUTES *, VIP_CONN_HANDLE *));
    HAS_TYPE(VipConnectAccept, VIP_RETURN (*)(VIP_CONN_HANDLE, vi_t));
    HAS_TYPE(VipConnectReject, VIP_RETURN (*)(VIP_CONN_HANDLE));
    HAS_TYPE(VipConnectRequest,
             VIP_RETURN (*)(vi_t, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG, VIP_VI_ATTRIBUTES *));
    HAS_TYPE(VipDisconnect, of_vi);
    HAS_TYPE(VipConnectPeerRequest, VIP_RETURN (*)(vi_t, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG));
    HAS_TYPE(VipConnectPeerDone, VIP_RETURN (*)(vi_t, VIP_VI_ATTRIBUTES *));
    HAS_TYPE(VipConnectPeerWait, VIP_RETURN (*)(vi_t, VIP_VI_ATTRIBUTES *));
}

/* statement: signatures */
static void object_signatures(void) {
    HAS_TYPE(VipOpenNic, VIP_RETURN (*)(const VIP_CHAR *, nic_t *));
    HAS_TYPE(VipCloseNic, of_nic);
    HAS_TYPE(VipQueryNic, VIP_RETURN (*)(nic_t, VIP_NIC_ATTRIBUTES *));
    HAS_TYPE(VipCreateVi, VIP_RETURN (*)(nic_t, VIP_VI_ATTRIBUTES *, cq_t, cq_t, vi_t *));
    HAS_TYPE(VipDestroyVi, of_vi);
    HAS_TYPE(VipSetViAttributes, VIP_RETURN (*)(vi_t, VIP_VI_ATTRIBUTES *));
    HAS_TYPE(VipQueryVi, VIP_RETURN (*)(vi_t, VIP_VI_STATE *, VIP_VI_ATTRIBUTES *, VIP_BOOLEAN *, VIP_BOOLEAN *));
    HAS_TYPE(VipCreatePtag, VIP_RETURN (*)(nic_t, VIP_PROTECTION_HANDLE *));
    HAS_TYPE(VipDestroyPtag, VIP_RETURN (*)(nic_t, VIP_PROTECTION_HANDLE));
    HAS_TYPE(VipRegisterMem, VIP_RETURN (*)(nic_t, VIP_PVOID, VIP_ULONG, VIP_MEM_ATTRIBUTES *, mem_t *));
    HAS_TYPE(VipDeregisterMem, of_memory);
    HAS_TYPE(VipQueryMem, of_memory_attributes);
    HAS_TYPE(VipSetMemAttributes, of_memory_attributes);
    HAS_TYPE(VipQuerySystemManagementInfo, VIP_RETURN (*)(nic_t, VIP_ULONG, VIP_PVOID));
    HAS_TYPE(VipErrorCallback, VIP_RETURN (*)(nic_t, VIP_PVOID, void (*)(VIP_PVOID, VIP_ERROR_DESCRIPTOR *)));
    HAS_TYPE(VipNSInit, VIP_RETURN (*)(nic_t, VIP_PVOID));
    HAS_TYPE(VipNSShutdown, of_nic);
    HAS_TYPE(VipNSGetHostByName, VIP_RETURN (*)(nic_t, VIP_CHAR *, VIP_NET_ADDRESS *, VIP_ULONG));
    HAS_TYPE(VipNSGetHostByAddr, VIP_RETURN (*)(nic_t, VIP_NET_ADDRESS *, VIP_CHAR *, VIP_ULONG *));
}

/* statement: signatures, vendor-extras */
static void queue_signatures(void) {
    HAS_TYPE(VipPostSend, post_function);
    HAS_TYPE(VipPostRecv, post_function);
    HAS_TYPE(VipSendDone, done_function);
    HAS_TYPE(VipRecvDone, done_function);
    HAS_TYPE(VipSendWait, wait_function);
    HAS_TYPE(VipRecvWait, wait_function);
    HAS_TYPE(VipSendNotify, notify_function);
    HAS_TYPE(VipRecvNotify, notify_function);
    HAS_TYPE(VipCreateCQ, VIP_RETURN (*)(nic_t, VIP_ULONG, cq_t *));
    HAS_TYPE(VipDestroyCQ, VIP_RETURN (*)(cq_t));
    HAS_TYPE(VipResizeCQ, VIP_RETURN (*)(cq_t, VIP_ULONG));
    HAS_TYPE(VipCQDone, VIP_RETURN (*)(cq_t, vi_t *, VIP_BOOLEAN *));
    HAS_TYPE(VipCQWait, VIP_RETURN (*)(cq_t, VIP_ULONG, vi_t *, VIP_BOOLEAN *));
    HAS_TYPE(VipCQNotify, VIP_RETURN (*)(cq_t, VIP_PVOID, cq_callback));
    HAS_TYPE(VipPostDeferredSends, VIP_RETURN (*)(vi_t, VIP_BOOLEAN, VIP_BOOLEAN *));
    HAS_TYPE(VipGetUserData, VIP_PVOID (*)(vi_t));
    HAS_TYPE(VipSetUserData, void (*)(vi_t, VIP_PVOID));
    HAS_TYPE(VipAddTagCQ, VIP_RETURN (*)(cq_t, VIP_EVENT_HANDLE *, VIP_ULONG, VIP_ULONG));
    HAS_TYPE(VipRemoveTagCQ, VIP_RETURN (*)(cq_t, VIP_EVENT_HANDLE, VIP_ULONG));
}

/* statement: scalar-types, pvoid64 */
static void scalars(void) {
    CHECK(IS_TYPE(VIP_BOOLEAN, int) && IS_TYPE(VIP_ULONG, unsigned long) && IS_TYPE(VIP_MEM_HANDLE, uint32_t));
    CHECK(IS_TYPE(VIP_QOS, void *) && IS_TYPE(VIP_NIC_HANDLE, void *) && IS_TYPE(VIP_VI_HANDLE, void *));
    CHECK(IS_TYPE(VIP_CQ_HANDLE, void *) && IS_TYPE(VIP_PROTECTION_HANDLE, void *));
    CHECK(IS_TYPE(VIP_CONN_HANDLE, void *) && IS_TYPE(VIP_PVOID, void *));
    VIP_PVOID64 both;
    both.AddressBits = 0x123456;
    CHECK(sizeof both == 8 && both.Address == (void *)0x123456 && IS_TYPE(__typeof__(both.AddressBits), uint64_t));
}

/* statement: descriptor-layout, control-segment, data-segments */
static void descriptor_layout(void) {
    VIP_DESCRIPTOR one;
    VIP_DESCRIPTOR_SEGMENT *segment = &one.DS[1];
    CHECK(sizeof one == 64 && sizeof one.CS == 32 && sizeof one.DS == 2 * 16 && VIP_DESCRIPTOR_ALIGNMENT == 64);
    AT(VIP_DESCRIPTOR, CS, 0), AT(VIP_DESCRIPTOR, DS, 32);
    AT(VIP_CONTROL_SEGMENT, Next, 0), AT(VIP_CONTROL_SEGMENT, NextHandle, 8);
    AT(VIP_CONTROL_SEGMENT, SegCount, 12), AT(VIP_CONTROL_SEGMENT, Control, 14);
    CHECK(sizeof one.CS.SegCount == 2 && sizeof one.CS.Control == 2);
    AT(VIP_CONTROL_SEGMENT, Reserved, 16), AT(VIP_CONTROL_SEGMENT, ImmediateData, 20);
    AT(VIP_CONTROL_SEGMENT, Length, 24), AT(VIP_CONTROL_SEGMENT, Status, 28);
    AT(VIP_ADDRESS_SEGMENT, Data, 0), AT(VIP_ADDRESS_SEGMENT, Handle, 8), AT(VIP_ADDRESS_SEGMENT, Reserved, 12);
    AT(VIP_DATA_SEGMENT, Data, 0), AT(VIP_DATA_SEGMENT, Handle, 8), AT(VIP_DATA_SEGMENT, Length, 12);
    CHECK((void *)&segment->Remote == (void *)&segment->Local && sizeof *segment == 16);
}

/* statement: vi-attributes, memory-attributes, nic-attributes, net-address, error-descriptor, autodiscovery */
static void structures(void) {
    CHECK(sizeof(VIP_VI_ATTRIBUTES) == 40 && sizeof(VIP_MEM_ATTRIBUTES) == 16 && sizeof(VIP_NIC_ATTRIBUTES) == 200);
    AT(VIP_VI_ATTRIBUTES, ReliabilityLevel, 0), AT(VIP_VI_ATTRIBUTES, MaxTransferSize, 8);
    AT(VIP_VI_ATTRIBUTES, QoS, 16), AT(VIP_VI_ATTRIBUTES, Ptag, 24);
    AT(VIP_VI_ATTRIBUTES, EnableRdmaWrite, 32), AT(VIP_VI_ATTRIBUTES, EnableRdmaRead, 36);
    AT(VIP_MEM_ATTRIBUTES, Ptag, 0), AT(VIP_MEM_ATTRIBUTES, EnableRdmaWrite, 8);
    AT(VIP_MEM_ATTRIBUTES, EnableRdmaRead, 12);
    AT(VIP_NIC_ATTRIBUTES, Name, 0), AT(VIP_NIC_ATTRIBUTES, HardwareVersion, 64);
    AT(VIP_NIC_ATTRIBUTES, ProviderVersion, 72), AT(VIP_NIC_ATTRIBUTES, NicAddressLen, 80);
    AT(VIP_NIC_ATTRIBUTES, LocalNicAddress, 88), AT(VIP_NIC_ATTRIBUTES, ThreadSafe, 96);
    AT(VIP_NIC_ATTRIBUTES, MaxDiscriminatorLen, 100), AT(VIP_NIC_ATTRIBUTES, MaxRegisterBytes, 104);
    AT(VIP_NIC_ATTRIBUTES, MaxRegisterRegions, 112), AT(VIP_NIC_ATTRIBUTES, MaxRegisterBlockBytes, 120);
    AT(VIP_NIC_ATTRIBUTES, MaxVI, 128), AT(VIP_NIC_ATTRIBUTES, MaxDescriptorsPerQueue, 136);
    AT(VIP_NIC_ATTRIBUTES, MaxSegmentsPerDesc, 144), AT(VIP_NIC_ATTRIBUTES, MaxCQ, 152);
    AT(VIP_NIC_ATTRIBUTES, MaxCQEntries, 160), AT(VIP_NIC_ATTRIBUTES, MaxTransferSize, 168);
    AT(VIP_NIC_ATTRIBUTES, NativeMTU, 176), AT(VIP_NIC_ATTRIBUTES, MaxPtags, 184);
    AT(VIP_NIC_ATTRIBUTES, ReliabilityLevelSupport, 192), AT(VIP_NIC_ATTRIBUTES, RDMAReadSupport, 194);
    AT(VIP_NET_ADDRESS, HostAddressLen, 0), AT(VIP_NET_ADDRESS, DiscriminatorLen, 2);
    AT(VIP_NET_ADDRESS, HostAddress, 4);
    CHECK(sizeof(VIP_ERROR_DESCRIPTOR) == 48);
    AT(VIP_ERROR_DESCRIPTOR, NicHandle, 0), AT(VIP_ERROR_DESCRIPTOR, ViHandle, 8);
    AT(VIP_ERROR_DESCRIPTOR, CQHandle, 16), AT(VIP_ERROR_DESCRIPTOR, DescriptorPtr, 24);
    AT(VIP_ERROR_DESCRIPTOR, OpCode, 32), AT(VIP_ERROR_DESCRIPTOR, ResourceCode, 40);
    AT(VIP_ERROR_DESCRIPTOR, ErrorCode, 44);
    AT(VIP_AUTODISCOVERY_LIST, NumberOfHops, 0), AT(VIP_AUTODISCOVERY_LIST, ADAddrArray, 8);
    AT(VIP_AUTODISCOVERY_LIST, NumAdAddrs, 16);
    CHECK(VIP_SMI_AUTODISCOVERY == 1);
}

/* statement: control-bits, status-bits, status-operations */
static void bits(void) {
    CHECK(VIP_CONTROL_OP_MASK == 3 && VIP_CONTROL_OP_SENDRECV == 0 && VIP_CONTROL_OP_RDMAWRITE == 1);
    CHECK(VIP_CONTROL_OP_RDMAREAD == 2 && VIP_CONTROL_IMMEDIATE == 4 && VIP_CONTROL_QFENCE == 8);
    CHECK(VIP_CONTROL_RESERVED == 0xFFF0);
    CHECK(VIP_STATUS_DONE == 1 && VIP_STATUS_FORMAT_ERROR == 2 && VIP_STATUS_PROTECTION_ERROR == 4);
    CHECK(VIP_STATUS_LENGTH_ERROR == 8 && VIP_STATUS_PARTIAL_ERROR == 0x10);
    CHECK(VIP_STATUS_DESC_FLUSHED_ERROR == 0x20 && VIP_STATUS_TRANSPORT_ERROR == 0x40);
    CHECK(VIP_STATUS_RDMA_PROT_ERROR == 0x80 && VIP_STATUS_REMOTE_DESC_ERROR == 0x100);
    CHECK(VIP_STATUS_ERROR_MASK == 0x1FE);
    CHECK(VIP_STATUS_OP_SEND == 0 && VIP_STATUS_OP_RECEIVE == 0x10000 && VIP_STATUS_OP_RDMA_WRITE == 0x20000);
    CHECK(VIP_STATUS_OP_REMOTE_RDMA_WRITE == 0x30000 && VIP_STATUS_OP_RDMA_READ == 0x40000);
    CHECK(VIP_STATUS_OP_MASK == 0x70000 && VIP_STATUS_IMMEDIATE == 0x80000);
}

/* statement: return-codes, vendor-codes, vi-states, reliability-bits, error-resources, error-codes */
static void codes(void) {
    static const int returns[] = {
        VIP_SUCCESS,     VIP_NOT_DONE,   VIP_INVALID_PARAMETER,         VIP_ERROR_RESOURCE,
        VIP_TIMEOUT,     VIP_REJECT,     VIP_INVALID_RELIABILITY_LEVEL, VIP_INVALID_MTU,
        VIP_INVALID_QOS, VIP_INVALID_PTAG, VIP_INVALID_RDMAREAD,        VIP_DESCRIPTOR_ERROR,
        VIP_INVALID_STATE, VIP_ERROR_NAMESERVICE, VIP_NO_MATCH,         VIP_NOT_REACHABLE,
        VIP_ERROR_NOT_SUPPORTED,
    };
    static const int errors[] = {
        VIP_ERROR_POST_DESC,   VIP_ERROR_CONN_LOST,  VIP_ERROR_RECVQ_EMPTY, VIP_ERROR_VI_OVERRUN,
        VIP_ERROR_RDMAW_PROT,  VIP_ERROR_RDMAW_DATA, VIP_ERROR_RDMAW_ABORT, VIP_ERROR_RDMAR_PROT,
        VIP_ERROR_COMP_PROT,   VIP_ERROR_RDMA_TRANSPORT, VIP_ERROR_CATASTROPHIC,
    };
    int at;
    for (at = 0; at < (int)(sizeof returns / sizeof *returns); at++) CHECK(returns[at] == at);
    for (at = 0; at < (int)(sizeof errors / sizeof *errors); at++) CHECK(errors[at] == at);
    CHECK(VIP_STATE_IDLE == 0 && VIP_STATE_CONNECTED == 1 && VIP_STATE_CONNECT_PENDING == 2 && VIP_STATE_ERROR == 3);
    CHECK(VIP_SERVICE_UNRELIABLE == 1 && VIP_SERVICE_RELIABLE_DELIVERY == 2 && VIP_SERVICE_RELIABLE_RECEPTION == 4);
    CHECK(sizeof(VIP_RELIABILITY_LEVEL) == 2 && IS_TYPE(VIP_RELIABILITY_LEVEL, unsigned short));
    CHECK(VIP_RESOURCE_NIC == 0 && VIP_RESOURCE_VI == 1 && VIP_RESOURCE_CQ == 2 && VIP_RESOURCE_DESCRIPTOR == 3);
}

/* A process that was forked from one that uses the library gets VIP_ERROR_RESOURCE; its parent goes on. */
static void forked_child(void) {
    VIP_NIC_ATTRIBUTES attributes;
    VIP_VI_ATTRIBUTES vi_attributes;
    VIP_NIC_HANDLE nic, other;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    pid_t child;
    int status;
    memset(&vi_attributes, 0, sizeof vi_attributes);
    vi_attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    vi_attributes.MaxTransferSize = 1;
    OK(VipOpenNic("nic0", &nic));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GIVES(VIP_ERROR_RESOURCE, VipOpenNic("nic0", &other));
        GIVES(VIP_ERROR_RESOURCE, VipQueryNic(nic, &attributes));
        GIVES(VIP_ERROR_RESOURCE, VipCreatePtag(nic, &ptag));
        GIVES(VIP_ERROR_RESOURCE, VipCreateVi(nic, &vi_attributes, NULL, NULL, &vi));
        GIVES(VIP_ERROR_RESOURCE, VipCloseNic(nic));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(VipQueryNic(nic, &attributes));
    OK(VipCloseNic(nic));
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"connection-signatures", connection_signatures},
        {"object-signatures", object_signatures},
        {"queue-signatures", queue_signatures},
        {"scalars", scalars},
        {"descriptor-layout", descriptor_layout},
        {"structures", structures},
        {"bits", bits},
        {"codes", codes},
        {"forked-child", forked_child},
    };
    size_t at;
    alarm(300);
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        current = cases[at].name;
        cases[at].run();
        printf("%s\n", current);
        fflush(stdout);
    }
    return 0;
}
