/* What the VI Provider Library over Nemesia adds to vipl.h: memory that is allocated and registered without a copy, and
 * the transport of a connection.
 *
 * Memory that a program registers itself (VipRegisterMem) has a shadow of the same length in shared memory: other
 * processes write to the shadow, and the library copies what arrives. Memory that the library allocates is itself in
 * shared memory: other processes write to it, and nothing is copied again. */
#ifndef VIPL_NEMESIA_H
#define VIPL_NEMESIA_H

#include <vipl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As VipRegisterMem, for new memory: *Address is its address, aligned to a page, and its bytes are 0. */
VIP_RETURN VipAllocRegisterMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID *Address, VIP_ULONG Length,
                               VIP_MEM_ATTRIBUTES *Attributes, VIP_MEM_HANDLE *MemHandle);
/* Deregisters and releases such memory. */
VIP_RETURN VipFreeRegisteredMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemHandle);

/* How other processes reach registered memory. */
typedef enum {
    /* The library allocated it: no copy beside that of the sender. */
    VIP_MEM_ALLOCATED = 0,
    /* It has a shadow. For an RDMA read, its process copies to the shadow first. */
    VIP_MEM_SHADOW = 1,
    /* It has a shadow. RDMA reads read it directly, through the kernel, where the kernel permits that. */
    VIP_MEM_SHADOW_READ = 2
} VIP_MEM_KIND;

VIP_RETURN VipQueryMemKind(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemHandle,
                           VIP_MEM_KIND *Kind);
/* Chooses between VIP_MEM_SHADOW (VIP_FALSE) and VIP_MEM_SHADOW_READ (VIP_TRUE, the default), for processes to which
 * the memory is lent from now on. */
VIP_RETURN VipSetMemReadable(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemHandle,
                             VIP_BOOLEAN IsReadable);

/* How a VI reaches the other side. */
typedef enum {
    VIP_TRANSPORT_NONE = 0, /* It is not connected. */
    VIP_TRANSPORT_SHARED_MEMORY = 1,
    VIP_TRANSPORT_TCP = 2,
    VIP_TRANSPORT_VERBS = 3 /* An RDMA device. */
} VIP_VI_TRANSPORT;

/* Explanation, if it is not NULL, has room for Length bytes: it gets a line with the place, and the reason why no RDMA
 * device is used, as much of it as fits, and a final zero. */
VIP_RETURN VipQueryViTransport(VIP_VI_HANDLE ViHandle, VIP_VI_TRANSPORT *Transport, VIP_CHAR *Explanation,
                               VIP_ULONG Length);

#ifdef __cplusplus
}
#endif

#endif
