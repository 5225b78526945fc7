//! The endpoint of a [`SharedEndpoint`](super::SharedEndpoint) during a call that holds its lock.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::super::{
    Access, Agreed, AmongPeers, Arm, Comparison, CompleteAt, Completion, Context, Datatype, Endpoint,
    ExposeOptions, Incoming, Meeting, Message, MessageBuffer, Path, PeerGroup, Ranking, RecvOp, Reduction,
    Region, RemoteKey, Request, RequestPlace, Scope, SendOp, Source, Status, Tag, WithCompletion,
};
use nemesia_core::peers::{PeerAddress, PeerRef, PeerStage};

use crate::error::Error;
use nemesia_core::engine::MultiReceiveOptions;

/// The locked endpoint of a [`SharedEndpoint`](super::SharedEndpoint), with the methods that do not block.
///
/// It is no `&mut Endpoint`, so it cannot be swapped for another endpoint. A thread that waits for an operation has
/// lent its buffer to this endpoint, which therefore has to stay where it is:
///
/// ```compile_fail,E0308
/// # use nemesia::{Endpoint, SharedEndpoint};
/// fn swaps(shared: &SharedEndpoint, other: &mut Endpoint) {
///     let _ = shared.with(|endpoint| std::mem::swap(endpoint, other));
/// }
/// ```
///
/// ```compile_fail,E0594
/// # use nemesia::{Endpoint, SharedEndpoint};
/// fn replaces(shared: &SharedEndpoint, other: Endpoint) {
///     let _ = shared.with(|endpoint| **endpoint = other);
/// }
/// ```
///
/// Two locked endpoints cannot be swapped either:
///
/// ```compile_fail,E0521
/// # use nemesia::SharedEndpoint;
/// fn crosses(one: &SharedEndpoint, other: &SharedEndpoint) {
///     let _ = one.with(|one| other.with(|other| std::mem::swap(one, other)));
/// }
/// ```
#[derive(Debug)]
pub struct LockedEndpoint<'a>(pub(in crate::endpoint) &'a mut Endpoint);

impl Deref for LockedEndpoint<'_> {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        self.0
    }
}

macro_rules! methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl LockedEndpoint<'_> {
            $(
                #[doc = concat!("Calls [`Endpoint::", stringify!($name), "`] on the locked endpoint.")]
                #[doc = "\n# Errors\nAs for that method."]
                #[inline]
                pub fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
                    self.0.$name($($argument),*)
                }
            )*
        }
    };
}

macro_rules! unsafe_methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl LockedEndpoint<'_> {
            $(
                #[doc = concat!("Calls [`Endpoint::", stringify!($name), "`] on the locked endpoint.")]
                #[doc = "\n# Errors\nAs for that method."]
                #[doc = "\n# Safety\nAs for that method."]
                #[inline]
                pub unsafe fn $name(&mut self, $($argument: $type),*) -> $result {
                    // SAFETY: the caller's promise.
                    unsafe { self.0.$name($($argument),*) }
                }
            )*
        }
    };
}

methods! {
    fn acknowledge_failures();
    fn agree(flags: u64) -> Result<Agreed, Error>;
    fn allocate(len: usize, access: Access) -> Result<Region, Error>;
    fn allocate_buffer(len: usize) -> Result<MessageBuffer, Error>;
    fn arm() -> Arm;
    fn cancel(request: Request) -> bool;
    fn completions(into: &mut [Completion]) -> usize;
    fn connect(address: &PeerAddress) -> Result<PeerRef, Error>;
    fn disconnect(peer: PeerRef) -> Result<(), Error>;
    fn group(addresses: &[PeerAddress]) -> Result<PeerGroup, Error>;
    fn known_group(addresses: &[PeerAddress]) -> Result<PeerGroup, Error>;
    fn meet(
        group: &PeerGroup, meeting: Meeting, number: u32, limit: Option<Duration>
    ) -> Result<PeerGroup, Error>;
    fn unexpose(region: Region) -> Result<(), Error>;
    fn disarm();
    fn fence(rank: usize) -> Result<(), Error>;
    fn finish_now(request: Request) -> Option<Status>;
    fn iflush(rank: usize) -> Result<Request, Error>;
    fn iflush_all() -> (Vec<Request>, Result<(), Error>);
    fn inject(to: usize, tag: u64, bytes: &[u8]) -> Result<bool, Error>;
    fn improbe(from: Source, tag: Tag) -> Result<Option<Message>, Error>;
    fn inotified(region: Region, count: u64) -> Result<Request, Error>;
    fn iprobe(from: Source, tag: Tag) -> Result<Option<Status>, Error>;
    fn is_quiet() -> bool;
    fn next_completion() -> Option<(u64, Status)>;
    fn notifications(region: Region) -> Result<u64, Error>;
    fn path(key: &RemoteKey) -> Path;
    fn peer_of(rank: usize) -> Option<PeerRef>;
    fn progress() -> usize;
    fn rank_of(peer: PeerRef) -> Result<usize, Error>;
    fn read_region(region: Region, at: usize, to: &mut [u8]) -> Result<(), Error>;
    fn readmit(rank: usize) -> Result<(), Error>;
    fn receive_many(
        number: u64, from: Source, tag: Tag, buffer: Vec<u8>, options: MultiReceiveOptions
    ) -> Result<Request, (Error, Vec<u8>)>;
    fn recv_now(from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status>;
    fn remote_key(region: Region) -> Result<RemoteKey, Error>;
    fn remove_handler(number: u16) -> bool;
    fn restarted() -> Result<Vec<usize>, Error>;
    fn stage_of(peer: PeerRef) -> Result<PeerStage, Error>;
    fn send_now(to: usize, tag: u64, bytes: &[u8]) -> bool;
    fn set_handler(number: u16, handler: impl FnMut(&mut Incoming<'_>) + Send + 'static);
    fn shrink() -> Result<Ranking, Error>;
    fn take_buffer(completion: &Completion) -> Option<Vec<u8>>;
    fn test(request: Request) -> Result<Option<Status>, Error>;
    fn test_some(requests: &mut [impl RequestPlace], done: impl FnMut(usize, Result<Status, Error>)) -> usize;
    fn write_region(region: Region, at: usize, from: &[u8]) -> Result<(), Error>;
}

unsafe_methods! {
    fn expose(base: *mut u8, len: usize, access: Access) -> Result<Region, Error>;
    fn expose_as(base: *mut u8, len: usize, access: Access, options: ExposeOptions) -> Result<Region, Error>;
    fn iaccumulate(
        key: &RemoteKey, offset: u64, what: (Datatype, Reduction), base: *const u8, len: usize, complete: CompleteAt
    ) -> Result<Request, Error>;
    fn icompare_swap(
        key: &RemoteKey, offset: u64, what: (Datatype, Comparison), expected_and_value: [u64; 2], old: *mut u8
    ) -> Result<Request, Error>;
    fn ifetch(
        key: &RemoteKey, offset: u64, what: (Datatype, Reduction), operand: u64, old: *mut u8
    ) -> Result<Request, Error>;
    fn ifetch_accumulate(
        key: &RemoteKey, offset: u64, what: (Datatype, Reduction), operands: *const u8, old: *mut u8,
        len: usize
    ) -> Result<Request, Error>;
    fn iget(key: &RemoteKey, offset: u64, base: *mut u8, len: usize) -> Result<Request, Error>;
    fn imrecv(message: Message, base: *mut u8, len: usize) -> Result<Request, Error>;
    fn iput(
        key: &RemoteKey, offset: u64, base: *const u8, len: usize, notify: bool, complete: CompleteAt
    ) -> Result<Request, Error>;
    fn irecv(from: Source, tag: Tag, base: *mut u8, len: usize) -> Result<Request, Error>;
    fn irecv_many(
        number: u64, from: Source, tag: Tag, place: (*mut u8, usize), options: MultiReceiveOptions
    ) -> Result<Request, Error>;
    fn irecv_op(op: RecvOp<'_>) -> Result<Request, Error>;
    fn isend(to: usize, tag: u64, base: *const u8, len: usize) -> Result<Request, Error>;
    fn isend_active(
        to: usize, handler: u16, header: *const [u8], payload: *const [u8]
    ) -> Result<Request, Error>;
    fn isend_op(op: SendOp<'_>) -> Result<Request, Error>;
}

impl LockedEndpoint<'_> {
    /// Returns this endpoint in a matching context; see [`Endpoint::in_context`]. Methods of the context that block
    /// keep all other threads out until they return.
    #[inline]
    pub const fn in_context(&mut self, context: u16) -> Context<'_> {
        self.0.in_context(context)
    }

    /// Returns this endpoint for collective calls among a group; see [`Endpoint::among_peers`]. These calls keep all
    /// other threads out until they return.
    ///
    /// # Errors
    /// As for [`Endpoint::among_peers`].
    pub fn among_peers(&mut self, group: &PeerGroup) -> Result<AmongPeers<'_>, Error> {
        self.0.among_peers(group)
    }

    /// Returns this endpoint for one operation whose completion enters the queue; see [`Endpoint::with_completion`].
    #[inline]
    pub const fn with_completion(&mut self, context: u64) -> WithCompletion<'_> {
        self.0.with_completion(context)
    }

    /// Returns the bytes of a message in a buffer for many; see [`Endpoint::received`].
    pub fn received(&self, completion: &Completion) -> Option<&[u8]> {
        self.0.received(completion)
    }

    /// Returns the descriptor for event loops; see [`Endpoint::event_fd`].
    ///
    /// # Errors
    /// As for [`Endpoint::event_fd`].
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, Error> {
        self.0.event_fd()
    }

    /// Runs `work` with a scope; see [`Endpoint::scope`]. All other threads are kept out until it returns.
    ///
    /// # Errors
    /// As for [`Endpoint::scope`].
    pub fn scope<'env, R>(
        &mut self,
        work: impl for<'scope> FnOnce(&mut Scope<'scope, 'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.0.scope(work)
    }
}
