//! Access to the memory of peers.
use super::PeerId;
use crate::payload::{Exposed, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use crate::wire::region::RegionBytes;
use crate::wire::rendezvous::Descriptor;
use crate::wire::rma::Access;

/// The result of starting an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessed {
    /// All bytes were copied.
    Done,
    /// The access is under way; [`RemoteAccess::poll_access`] reports its end.
    Later,
    /// The port has no place for another access now. Nothing was started.
    Busy,
    /// The access is impossible. The content of the local range is unspecified.
    Failed(AccessError),
}

/// The reason why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// These bytes cannot be accessed, because the range is not mapped or not exposed. Other accesses may
    /// succeed.
    #[error("the range is not accessible")]
    Range,
    /// No access to this peer's memory will succeed: it is not permitted, or the process has ended.
    #[error("access to the peer's memory is refused")]
    Refused,
    /// The peer's list of runs contradicts its description. Other accesses may succeed.
    #[error("the peer's list of runs contradicts its description")]
    List,
}

/// The result of starting an access to several ranges in sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessedRanges {
    /// The result of the last access that was tried.
    pub last: Accessed,
    /// The number of accesses that are under way. All have the same operation number.
    pub under_way: u32,
    /// The number of bytes, from the first on, that were copied or whose access is under way.
    pub begun: u64,
}

impl AccessedRanges {
    /// Before the first access.
    pub const NONE: Self = Self { last: Accessed::Done, under_way: 0, begun: 0 };

    /// Starts the access to the next range, which has so many bytes, unless an earlier access could not begin.
    pub fn next(&mut self, len: u64, access: impl FnOnce() -> Accessed) {
        if !self.continues() {
            return;
        }
        self.last = access();
        self.under_way += u32::from(self.last == Accessed::Later);
        self.begun += if self.continues() { len } else { 0 };
    }

    const fn continues(&self) -> bool {
        matches!(self.last, Accessed::Done | Accessed::Later)
    }

    /// Starts one access for each range by `get`, which gets the position of the range's first byte. The first range
    /// is for the byte at `at`. Stops at the first range whose access cannot begin.
    pub fn each(to: &mut ReceiveRanges, at: u64, mut get: impl FnMut(u64, ReceiveRange) -> Accessed) -> Self {
        let mut all = Self::NONE;
        while all.continues()
            && let Some(range) = to.pop_first()
        {
            let begins = at.checked_add(all.begun).ok_or(AccessError::Range);
            all.next(range.len() as u64, || begins.map_or_else(Accessed::Failed, |at| get(at, range)));
        }
        all
    }
}

/// The end of an access that was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedAccess {
    /// The number that the engine gave to the access.
    pub operation: u64,
    /// Whether all bytes were copied. After an error the content of the local range is unspecified.
    pub result: Result<(), AccessError>,
}

/// The protocols by which large messages from a peer may move to this process. The receiver selects one of them for
/// each message. If a message cannot move by the selected protocol, it is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process gets the bytes from the sender's memory.
    pub get: bool,
    /// The sender puts the bytes into this process's memory.
    pub put: bool,
    /// The bytes travel in packets, even if they could be got or put.
    pub stream: bool,
}

/// The form in which a port accesses long ranges best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessShape {
    /// Most bytes of one access, at least 1.
    pub most_bytes: u64,
    /// A rest of a message of at most so many bytes is one access, even if the engine prefers shorter ones: each costs
    /// a round trip.
    pub whole_bytes: u64,
    /// An access that ends before the end of the message should end at a local address that is a multiple of this
    /// number. At least 1.
    pub alignment: u64,
}

impl AccessShape {
    /// Any access is as good as any other.
    pub const ANY: Self = Self { most_bytes: u64::MAX, whole_bytes: 0, alignment: 1 };

    /// Returns the end of the access that begins with the byte `start`, whose local address is `address`, or 0 if the
    /// address is unknown. `most` and `end` limit the access.
    pub fn end_of(&self, (start, end): (u64, u64), most: u64, address: u64) -> u64 {
        let whole = if end.saturating_sub(start) <= self.whole_bytes { self.whole_bytes } else { 0 };
        let most = most.max(whole).min(self.most_bytes).max(1);
        let next = end.min(start.saturating_add(most));
        if next == end || address == 0 {
            return next;
        }
        let beyond = address.wrapping_add(next - start).checked_rem(self.alignment).unwrap_or(0);
        if beyond < next - start { next - beyond } else { next }
    }
}

/// How the regions of a peer are accessed directly. A packet that is sent after a put has begun arrives after its
/// bytes, and an access begins at the peer after all bytes of earlier puts are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAccess {
    /// The end of a put proves that its bytes have arrived. Otherwise only the answer to a later packet does.
    pub put_proves_arrival: bool,
}

/// A buffer that is exposed to a peer, as the port numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure(
    /// The port's number.
    pub u64,
);

/// The optional access to memory of peers, by which large messages move without intermediate copies (paper 1,
/// section 5; paper 4, section 3.2). By default there is none, and such messages are streamed.
///
/// The sender *exposes* a buffer. Its port describes the buffer in a [`Descriptor`], which the engine carries to
/// the receiver without looking into it. The receiver *gets* bytes by it, in any order and with any number of
/// accesses under way. In the other direction the receiver exposes its buffer and the sender *puts*. The end of
/// an exposure is *revoked*.
///
/// # Revocation
/// After [`RemoteAccess::revoke`] returns, the peer can make no access that the port is able to prevent. A
/// transport may be unable to prevent some: a peer that may read this process's memory through the kernel can do
/// so at any time, with or without an exposure. Therefore only memory for which a late *read* is harmless is
/// exposed by address, and a port exposes memory for *writing* only if it can prevent late writes.
///
/// # Safety
/// A port uses a range that it got in [`RemoteAccess::get`] or [`RemoteAccess::put`] only
/// - during the call, if the result is not [`Accessed::Later`];
/// - otherwise until [`RemoteAccess::poll_access`] returns the operation, until
///   [`PacketPort::close`](super::PacketPort::close) returns for the peer, or until the port is dropped,
///   whichever comes first.
///
/// It writes only to ranges of [`RemoteAccess::get`] and [`RemoteAccess::expose_for_put`]. An exposed range is used
/// until the exposure is revoked, the connection to the peer is closed, or the port is dropped.
#[allow(unsafe_code, reason = "the trait has obligations about memory; this file does nothing unsafe")]
pub unsafe trait RemoteAccess {
    /// Returns whether [`RemoteAccess::get`] may be tried with this peer.
    fn can_get(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// Returns the protocols by which messages from this peer may move.
    fn rendezvous(&self, peer: PeerId) -> Rendezvous {
        Rendezvous { get: self.can_get(peer), put: false, stream: true }
    }

    /// Returns the form of accesses to the memory of this peer.
    fn access_shape(&self, peer: PeerId) -> AccessShape {
        let _ = peer;
        AccessShape::ANY
    }

    /// Returns whether the port can access this memory of the peer. A descriptor of an unknown method, or a
    /// malformed one, is not accessible; the message is then streamed.
    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        let _ = (peer, descriptor);
        false
    }

    /// Returns whether this process copies this memory of the peer in user space, as far as is known. No other
    /// protocol is then faster.
    fn is_mappable(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        let _ = (peer, descriptor);
        false
    }

    /// Exposes a buffer that the peer may read, and returns its description; [`Descriptor::NONE`] if the port
    /// cannot expose it. The range is never empty. A description with an exposure must be revoked.
    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        let _ = (peer, range);
        (Descriptor::NONE, None)
    }

    /// As [`RemoteAccess::expose`], for a buffer of several runs.
    fn expose_list(&mut self, peer: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        let _ = (peer, runs);
        (Descriptor::NONE, None)
    }

    /// As [`RemoteAccess::expose`], for a buffer that the peer may write. A port does so only if it can prevent every
    /// write after the exposure was revoked. If the peer reports the end by [`RemoteAccess::put_last`], this port
    /// delivers a packet [`Kind::Data`](crate::wire::Kind::Data) without bytes, whose tag is `receiver`.
    fn expose_for_put(
        &mut self,
        peer: PeerId,
        range: ReceiveRange,
        receiver: u64,
    ) -> (Descriptor, Option<Exposure>) {
        let _ = (peer, range, receiver);
        (Descriptor::NONE, None)
    }

    /// Prepares a buffer whose bytes will probably be put into the peer's memory: the work overlaps the handshake.
    /// `None` if there is nothing to prepare. The result must be revoked.
    fn prepare_put(&mut self, peer: PeerId, range: SendRange) -> Option<Exposure> {
        let _ = (peer, range);
        None
    }

    /// Ends an exposure. See the trait for the guarantee.
    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        let _ = (peer, exposure);
    }

    /// Copies the bytes of the peer's exposed memory from `at` on into `to`. `operation` is reported at the end if
    /// the access is under way on return. The range of the access lies in the exposed memory as far as an honest
    /// peer has described it; the port checks what it must.
    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        let _ = (peer, from, at, to, operation);
        Accessed::Failed(AccessError::Refused)
    }

    /// As [`RemoteAccess::get`], to several ranges in sequence: one access for each, unless the port can access them
    /// at once. Stops at the first range whose access cannot begin.
    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        AccessedRanges::each(to, at, |at, range| self.get(peer, from, at, range, operation))
    }

    /// As [`RemoteAccess::get`], in the other direction: copies `from` to the peer's exposed memory, from `at` on. When
    /// the access has ended, the bytes have arrived there.
    fn put(&mut self, peer: PeerId, to: &Descriptor, at: u64, from: SendRange, operation: u64) -> Accessed {
        let _ = (peer, to, at, from, operation);
        Accessed::Failed(AccessError::Refused)
    }

    /// Returns whether [`RemoteAccess::put_last`] can be used for this memory of the peer.
    fn notifies(&self, peer: PeerId, to: &Descriptor) -> bool {
        let _ = (peer, to);
        false
    }

    /// As [`RemoteAccess::put`]. When these bytes, and those of all earlier puts to the same memory, have arrived, the
    /// peer's port also delivers a packet without bytes (see [`RemoteAccess::expose_for_put`]).
    fn put_last(
        &mut self,
        peer: PeerId,
        to: &Descriptor,
        at: u64,
        from: SendRange,
        operation: u64,
    ) -> Accessed {
        let _ = (peer, to, at, from, operation);
        Accessed::Failed(AccessError::Refused)
    }

    /// Returns whether packets that are sent to the peer after a put has begun arrive after its bytes. If so, and
    /// if the put then fails, the peer fails too.
    fn orders_puts(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// Registers the memory of an exposed region, so that peers may access it by [`RemoteAccess::get`] and
    /// [`RemoteAccess::put`] in a [`Descriptor::REGION`] until the exposure was withdrawn. Every peer with the key has
    /// the rights. `None` if this port's peers use regions in packets only.
    fn expose_region(
        &mut self,
        peer: PeerId,
        memory: &Exposed,
        access: Access,
    ) -> Option<(RegionBytes, Exposure)> {
        let _ = (peer, memory, access);
        None
    }

    /// Ends an exposure of [`RemoteAccess::expose_region`]: after `true`, no peer can access the memory. `false` if the
    /// port still uses it: try again later.
    fn withdraw_region(&mut self, exposure: Exposure) -> bool {
        let _ = exposure;
        true
    }

    /// Returns how the regions of this peer can be accessed; `None` if only in packets.
    fn direct_access(&self, peer: PeerId) -> Option<DirectAccess> {
        let _ = peer;
        None
    }

    /// Returns the next access that has ended since it was under way; `None` if there is none.
    fn poll_access(&mut self) -> Option<CompletedAccess> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_ends_after_the_preferred_bytes_or_at_the_end_of_a_short_rest() {
        let shape = AccessShape { most_bytes: 600, whole_bytes: 500, alignment: 1 };
        for (range, most, end) in [
            ((0, 500), 100, 500),
            ((0, 501), 100, 100),
            ((100, 501), 100, 501),
            ((0, 5000), 4000, 600),
            ((7, 8), 100, 8),
            ((3, 3), 100, 3),
        ] {
            assert_eq!(shape.end_of(range, most, 0), end, "{range:?} by {most}");
        }
    }
}
