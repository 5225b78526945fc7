//! The only access to atomics, shared payload and fences.
//!
//! Every word that another process can see has one of these types:
//!
//! | type | use | in production | under loom |
//! |---|---|---|---|
//! | [`Word64`], [`Word32`] | control words; each ordered access names its [`Edge`] | an atomic | loom's atomic |
//! | [`Word16`], [`Word8`] | values of regions that atomic operations change | an atomic | loom's atomic |
//! | [`PayloadWord`] | payload that travels in words | a relaxed atomic | loom's `UnsafeCell`: a race fails the model |
//! | [`Payload`], [`PayloadMut`] | payload bytes | a bounds-checked raw range | a slice of loom's `UnsafeCell` |
//!
//! [`Local`] is for private values that a shared reference changes.
//!
//! A Release and the Acquire that pairs with it name the same [`Edge`]. The loom build can weaken either end
//! of any edge (a *mutant*, see `sync/model.rs`); `cargo proofs` requires that a model fails for each of
//! them.

#[cfg(not(nemesia_loom))]
mod copy;
pub mod in_order;
mod local;
pub mod opaque;
#[cfg(not(nemesia_loom))]
mod real;
#[cfg(not(nemesia_loom))]
pub use real::{Payload, PayloadMut, PayloadWord};

pub use local::Local;

#[cfg(nemesia_loom)]
pub mod model;
#[cfg(nemesia_loom)]
pub use model::{Payload, PayloadMut, PayloadWord};

#[cfg(not(nemesia_loom))]
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
#[cfg(nemesia_loom)]
use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// A named Release/Acquire pair (or, for [`Edge::Sleep`] and [`Edge::AssistClaim`], a pair of sequentially
/// consistent fences).
///
/// The name appears at both ends in the code. `tests/tidy` checks this, and the loom run weakens each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Edge {
    /// Fastbox: the sender's slots become readable when the receiver sees the first slot's stamp.
    FastboxPublish,
    /// Fastbox: the receiver has finished reading the slots below the position; they may be overwritten.
    FastboxAck,
    /// Cell: header and payload become readable when the receiver sees the sequence word.
    CellPublish,
    /// Cell queue: a process that sees the entry also sees the published cell that it names.
    QueuePublish,
    /// Cell queue: a producer that starts at this tail hint sees the entries below it.
    QueueTail,
    /// Return ring: the receiver has finished reading the cell; its owner may fill it again.
    CellReturn,
    /// Cells taken back: a receiver that has read what their owner filled in afterwards sees that they were taken back.
    /// A fence on each side: after the owner's word and before the next filling, and after the reading and before the
    /// receiver's look at the word.
    Withdrawal,
    /// Byte or record ring: bytes below the write position are readable.
    RingPublish,
    /// Byte or record ring: bytes below the read position may be overwritten.
    RingRelease,
    /// Segment: the header is complete when a peer sees its `ready` word.
    SegmentReady,
    /// Sender-assisted copy: a sender that sees the share's number sees its parameters, and none of the
    /// preceding share.
    AssistOpen,
    /// Sender-assisted copy: a receiver that sees that the sender has joined sees its claim; one that sees
    /// that it has left sees the bytes written.
    AssistLeave,
    /// Sender-assisted copy: each side publishes its claim, then reads the other's. A fence on each side
    /// ensures that at least one sees the other's claim.
    AssistClaim,
    /// Exposed memory: bytes put before an atomic operation on a value, or before the last word of a write, are
    /// readable for a process that observes the value, or the word.
    Region,
    /// Released memory: a reported range is complete when its stamp is seen, for readers and for the slot's
    /// next writer.
    ReleaseReported,
    /// Released memory: a reader that has seen a part of the slot's next range sees that the stamp has
    /// changed.
    ReleaseReused,
    /// Lock: the next holder sees everything that the preceding holder did.
    Lock,
    /// Sleep: the sleeper sets its flag, then polls for work; the waker publishes work, then reads the flag.
    /// A fence on each side ensures that at least one sees the other's write.
    Sleep,
}

impl Edge {
    /// All edges, in declaration order.
    pub const ALL: [Edge; 18] = [
        Edge::FastboxPublish,
        Edge::FastboxAck,
        Edge::CellPublish,
        Edge::QueuePublish,
        Edge::QueueTail,
        Edge::CellReturn,
        Edge::Withdrawal,
        Edge::RingPublish,
        Edge::RingRelease,
        Edge::SegmentReady,
        Edge::AssistOpen,
        Edge::AssistLeave,
        Edge::AssistClaim,
        Edge::Region,
        Edge::ReleaseReported,
        Edge::ReleaseReused,
        Edge::Lock,
        Edge::Sleep,
    ];
}

/// The end of an [`Edge`] to which an access belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The Release, or the waker's fence.
    Release,
    /// The Acquire, or the sleeper's fence.
    Acquire,
}

/// Returns the ordering of an access: as written, unless this loom run weakens that end of that edge.
#[inline(always)]
fn order(edge: Edge, end: End) -> Ordering {
    #[cfg(nemesia_loom)]
    if model::is_mutant(edge, end) {
        return Ordering::Relaxed;
    }
    let _ = edge;
    match end {
        End::Release => Ordering::Release,
        End::Acquire => Ordering::Acquire,
    }
}

/// Returns the ordering of an access that is both ends of an edge.
#[inline(always)]
fn both(edge: Edge) -> Ordering {
    match (order(edge, End::Release), order(edge, End::Acquire)) {
        (Ordering::Relaxed, weaker) => weaker,
        (weaker, Ordering::Relaxed) => weaker,
        _ => Ordering::AcqRel,
    }
}

/// Counts an access. In loom runs a model can stop a thread at any access.
#[inline(always)]
fn step() {
    #[cfg(nemesia_loom)]
    model::turn();
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $int:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name($atomic);

        impl $name {
            /// Returns a word of private or freshly reserved memory.
            #[cfg(not(nemesia_loom))]
            pub const fn new(value: $int) -> Self {
                Self($atomic::new(value))
            }

            /// Returns a word of a model; loom's atomics have no const constructor.
            #[cfg(nemesia_loom)]
            pub fn new(value: $int) -> Self {
                Self($atomic::new(value))
            }

            /// Reads the word without ordering.
            #[inline(always)]
            pub fn load_relaxed(&self) -> $int {
                step();
                self.0.load(Ordering::Relaxed)
            }

            /// Writes the word without ordering.
            #[inline(always)]
            pub fn store_relaxed(&self, value: $int) {
                step();
                self.0.store(value, Ordering::Relaxed);
            }

            /// Reads the word. Everything that its writer did before its Release on `edge` is then visible.
            #[inline(always)]
            pub fn load_acquire(&self, edge: Edge) -> $int {
                step();
                self.0.load(order(edge, End::Acquire))
            }

            /// Writes the word. A reader of the value with Acquire on `edge` sees everything done before.
            #[inline(always)]
            pub fn store_release(&self, value: $int, edge: Edge) {
                step();
                self.0.store(value, order(edge, End::Release));
            }

            /// Writes `new` with Release on `edge` if the word is `current`; else returns its value.
            ///
            /// # Errors
            /// The value found, if it is not `current`.
            #[inline(always)]
            pub fn cas_release(&self, current: $int, new: $int, edge: Edge) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, order(edge, End::Release), Ordering::Relaxed)
            }

            /// Writes `new` if the word is `current`. Everything that the writer of `current` did before its
            /// Release on `edge` is then visible. Else returns the word's value.
            ///
            /// # Errors
            /// The value found, if it is not `current`.
            #[inline(always)]
            pub fn cas_acquire(&self, current: $int, new: $int, edge: Edge) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, order(edge, End::Acquire), Ordering::Relaxed)
            }

            /// Writes the word and returns the old value. A reader of the new value with Acquire on `edge`
            /// sees everything done before.
            #[inline(always)]
            pub fn swap_release(&self, value: $int, edge: Edge) -> $int {
                step();
                self.0.swap(value, order(edge, End::Release))
            }

            /// Writes `new` without ordering if the word is `current`.
            ///
            /// # Errors
            /// The value found, if it is not `current`.
            #[inline(always)]
            pub fn cas_relaxed(&self, current: $int, new: $int) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
            }

            /// Changes the word in one atomic step and returns the old value, with Acquire and Release on
            /// `edge`: everything that other writers did before their changes is visible, and later writers
            /// see everything that this thread did before.
            #[inline]
            pub fn update_acq_rel(&self, edge: Edge, change: impl Fn($int) -> $int) -> $int {
                step();
                let mut old = self.0.load(Ordering::Relaxed);
                loop {
                    match self.0.compare_exchange_weak(old, change(old), both(edge), Ordering::Relaxed) {
                        Ok(_) => return old,
                        Err(found) => old = found,
                    }
                }
            }

            /// As `update_acq_rel`, for a word at an address.
            ///
            /// # Safety
            /// The word is initialised, aligned, mapped and writable. Others access it meanwhile only by
            /// atomic operations.
            #[cfg(not(nemesia_loom))]
            #[inline]
            pub unsafe fn update_acq_rel_at(
                word: core::ptr::NonNull<$int>,
                edge: Edge,
                change: impl Fn($int) -> $int,
            ) -> $int {
                // SAFETY: the caller guarantees a valid word, and this type is only an atomic; the reference
                // does not outlive this call.
                unsafe { word.cast::<Self>().as_ref() }.update_acq_rel(edge, change)
            }

            /// As `update_acq_rel`, which models use, because they have no addresses.
            ///
            /// # Safety
            /// As in production.
            #[cfg(nemesia_loom)]
            pub unsafe fn update_acq_rel_at(
                word: core::ptr::NonNull<$int>,
                edge: Edge,
                change: impl Fn($int) -> $int,
            ) -> $int {
                let _ = edge;
                // SAFETY: the caller guarantees a valid word.
                let old = unsafe { word.read() };
                // SAFETY: the caller guarantees a valid word.
                unsafe { word.write(change(old)) };
                old
            }

            /// As `load_acquire`, for a word at an address.
            ///
            /// # Safety
            /// The word is initialised, aligned and mapped. This process accesses it meanwhile only by atomic
            /// operations, or by copies that make no reference.
            #[cfg(not(nemesia_loom))]
            #[inline(always)]
            pub unsafe fn load_acquire_at(word: core::ptr::NonNull<$int>, edge: Edge) -> $int {
                // SAFETY: the caller guarantees a valid word, and this type is only an atomic; the reference
                // does not outlive this call.
                unsafe { word.cast::<Self>().as_ref() }.load_acquire(edge)
            }

            /// As `load_acquire`, which models use, because they have no addresses.
            ///
            /// # Safety
            /// As in production.
            #[cfg(nemesia_loom)]
            pub unsafe fn load_acquire_at(word: core::ptr::NonNull<$int>, edge: Edge) -> $int {
                let _ = edge;
                // SAFETY: the caller guarantees a valid word.
                unsafe { word.read() }
            }

            /// As `store_release`, for a word at an address.
            ///
            /// # Safety
            /// The word is aligned, mapped and writable. This process accesses it meanwhile only by atomic
            /// operations, or by copies that make no reference.
            #[cfg(not(nemesia_loom))]
            #[inline(always)]
            pub unsafe fn store_release_at(word: core::ptr::NonNull<$int>, value: $int, edge: Edge) {
                // SAFETY: the caller guarantees a valid word, and this type is only an atomic; the reference
                // does not outlive this call.
                unsafe { word.cast::<Self>().as_ref() }.store_release(value, edge);
            }

            /// As `store_release`, which models use, because they have no addresses.
            ///
            /// # Safety
            /// As in production.
            #[cfg(nemesia_loom)]
            pub unsafe fn store_release_at(word: core::ptr::NonNull<$int>, value: $int, edge: Edge) {
                let _ = edge;
                // SAFETY: the caller guarantees a valid word.
                unsafe { word.write(value) };
            }

            /// Adds one without ordering, and returns the old value.
            #[inline(always)]
            pub fn bump_relaxed(&self) -> $int {
                step();
                self.0.fetch_add(1, Ordering::Relaxed)
            }
        }
    };
}

word! {
    /// A 64-bit control word that other processes see.
    Word64, AtomicU64, u64
}
word! {
    /// A 32-bit control word that other processes see.
    Word32, AtomicU32, u32
}
word! {
    /// A 16-bit value of a region.
    Word16, AtomicU16, u16
}
word! {
    /// An 8-bit value of a region.
    Word8, AtomicU8, u8
}

/// The type of the word on which the kernel can make a process sleep.
#[cfg(not(nemesia_loom))]
pub type FutexWord = AtomicU32;

impl Word32 {
    /// Returns the atomic itself, for the futex system call.
    #[cfg(not(nemesia_loom))]
    pub fn as_futex(&self) -> &FutexWord {
        &self.0
    }
}

/// The kind of the two fences of [`Edge::Sleep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceMode {
    /// The sleeper makes every process of the world execute a barrier (`membarrier`). The waker only prevents
    /// reordering by the compiler, and its critical path has no fence.
    Asymmetric,
    /// Both sides execute a sequentially consistent fence.
    Symmetric,
}

/// Executes the waker's side of [`Edge::Sleep`]: between publishing work and reading the sleeper's flag.
#[inline(always)]
pub fn waker_fence(mode: FenceMode) {
    #[cfg(not(nemesia_loom))]
    match mode {
        FenceMode::Asymmetric => compiler_fence(Ordering::SeqCst),
        FenceMode::Symmetric => fence(Ordering::SeqCst),
    }
    // Loom has no membarrier. Models run the symmetric form, which gives the same guarantee as the asymmetric
    // form.
    #[cfg(nemesia_loom)]
    {
        step();
        if mode == FenceMode::Symmetric && !model::is_mutant(Edge::Sleep, End::Release) {
            fence(Ordering::SeqCst);
        }
    }
}

/// Executes the waker's side of [`Edge::Sleep`] on request of the sleeper: before reading the sleeper's flag
/// again.
#[inline]
pub fn asked_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Sleep, End::Release) {
        return;
    }
    fence(Ordering::SeqCst);
}

/// Executes the sleeper's side of [`Edge::Sleep`]: between setting its flag and polling for work a last time.
///
/// In [`FenceMode::Asymmetric`] this fence alone is not enough: the caller also executes `membarrier`, or has
/// requested [`asked_fence`] of the wakers.
#[inline]
pub fn sleeper_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Sleep, End::Acquire) {
        return;
    }
    fence(Ordering::SeqCst);
}

/// Executes the owner's side of [`Edge::Withdrawal`]: between taking cells or buffers back and filling them
/// again, also by non-temporal stores.
#[inline]
pub fn withdrawal_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Withdrawal, End::Release) {
        return;
    }
    fence(Ordering::SeqCst);
}

/// Executes the receiver's side of [`Edge::Withdrawal`]: between reading a cell or a buffer and looking whether it was
/// taken back.
#[inline(always)]
pub fn withdrawn_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Withdrawal, End::Acquire) {
        return;
    }
    fence(Ordering::Acquire);
}

/// Executes the receiver's side of [`Edge::AssistClaim`]: between publishing its claim and reading the
/// sender's.
#[inline]
pub fn receiver_fence() {
    claim_fence(End::Release);
}

/// Executes the sender's side of [`Edge::AssistClaim`]: between publishing its claim and reading the
/// receiver's.
#[inline]
pub fn assist_fence() {
    claim_fence(End::Acquire);
}

#[inline(always)]
fn claim_fence(end: End) {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::AssistClaim, end) {
        return;
    }
    let _ = end;
    fence(Ordering::SeqCst);
}

/// Informs the processor that this is a spin loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(nemesia_loom))]
    core::hint::spin_loop();
    #[cfg(nemesia_loom)]
    loom::thread::yield_now();
}
