//! The only door to atomics, shared payload and fences.
//!
//! Every word that another process can see is one of four types:
//!
//! | type | use | in production | under loom |
//! |---|---|---|---|
//! | [`Word64`], [`Word32`] | control words; each ordered access names its [`Edge`] | an atomic | loom's atomic |
//! | [`PayloadWord`] | payload that travels in words | a relaxed atomic | loom's `UnsafeCell`: a race fails the model |
//! | [`Payload`], [`PayloadMut`] | payload bytes | a bounds-checked raw range | a slice of loom's `UnsafeCell` |
//!
//! A Release and the Acquire that it pairs with bear the same [`Edge`]. The loom build can weaken either end
//! of any edge (a *mutant*, see `sync/model.rs`); `cargo proofs` demands that a model fails for each of them.

#[cfg(not(nemesia_loom))]
mod copy;
pub mod opaque;
#[cfg(not(nemesia_loom))]
mod real;
#[cfg(not(nemesia_loom))]
pub use real::{Payload, PayloadMut, PayloadWord};

#[cfg(nemesia_loom)]
pub mod model;
#[cfg(nemesia_loom)]
pub use model::{Payload, PayloadMut, PayloadWord};

#[cfg(not(nemesia_loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
#[cfg(nemesia_loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A named Release/Acquire pair (or, for [`Edge::Sleep`], a pair of sequentially consistent fences).
///
/// The name stands at both ends in the code; `tests/tidy` checks it, and the loom run weakens each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Edge {
    /// Fastbox: the sender's slots become readable when the first slot's stamp is seen.
    FastboxPublish,
    /// Fastbox: the receiver has finished reading the slots below the position; they may be overwritten.
    FastboxAck,
    /// Cell: header and payload become readable when the sequence word is seen.
    CellPublish,
    /// Cell queue: whoever sees the entry sees the published cell that it names.
    QueuePublish,
    /// Cell queue: whoever starts at this tail hint sees the entries below it.
    QueueTail,
    /// Return ring: the receiver has finished reading the cell; its owner may fill it again.
    CellReturn,
    /// Byte or record ring: bytes below the write position are readable.
    RingPublish,
    /// Byte or record ring: bytes below the read position may be overwritten.
    RingRelease,
    /// Segment: the header is complete when its `ready` word is seen.
    SegmentReady,
    /// Shared copy: what is to be copied is told when the share's number is seen, and nothing of the one before is used.
    ShareOpen,
    /// Shared copy: whoever sees that the sender has joined sees what it has claimed, and that it has left, what it wrote.
    ShareLeave,
    /// Shared copy: each side publishes its claim, then looks at the other's. A fence on each side makes it impossible that
    /// both miss.
    ShareClaim,
    /// Exposed memory: what was put before an atomic operation on a value is readable for whoever sees it by another.
    Region,
    /// Released memory: a range that was told is whole when its stamp is seen, for readers and for the slot's next writer.
    ReleaseTold,
    /// Released memory: who has seen a part of the slot's next range sees that the stamp is another.
    ReleaseReused,
    /// Lock: what its holder did is seen by the next.
    Lock,
    /// Sleep: the sleeper raises its flag, then looks for work; the waker publishes work, then looks at the
    /// flag. A fence on each side makes it impossible that both miss.
    Sleep,
}

impl Edge {
    /// Every edge, in declaration order.
    pub const ALL: [Edge; 17] = [
        Edge::FastboxPublish,
        Edge::FastboxAck,
        Edge::CellPublish,
        Edge::QueuePublish,
        Edge::QueueTail,
        Edge::CellReturn,
        Edge::RingPublish,
        Edge::RingRelease,
        Edge::SegmentReady,
        Edge::ShareOpen,
        Edge::ShareLeave,
        Edge::ShareClaim,
        Edge::Region,
        Edge::ReleaseTold,
        Edge::ReleaseReused,
        Edge::Lock,
        Edge::Sleep,
    ];
}

/// Which end of an [`Edge`] an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The Release, or the waker's fence.
    Release,
    /// The Acquire, or the sleeper's fence.
    Acquire,
}

/// The ordering of an access: as written, unless this loom run weakens that end of that edge.
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

/// The ordering of an access that is both ends of an edge.
#[inline(always)]
fn both(edge: Edge) -> Ordering {
    match (order(edge, End::Release), order(edge, End::Acquire)) {
        (Ordering::Relaxed, weaker) => weaker,
        (weaker, Ordering::Relaxed) => weaker,
        _ => Ordering::AcqRel,
    }
}

/// Loom runs count every access here, so that a model can stop a thread at any of them.
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
            /// A word of private or freshly reserved memory.
            #[cfg(not(nemesia_loom))]
            pub const fn new(value: $int) -> Self {
                Self($atomic::new(value))
            }

            /// A word of a model; loom's atomics have no const constructor.
            #[cfg(nemesia_loom)]
            pub fn new(value: $int) -> Self {
                Self($atomic::new(value))
            }

            /// Reads without ordering anything else.
            #[inline(always)]
            pub fn load_relaxed(&self) -> $int {
                step();
                self.0.load(Ordering::Relaxed)
            }

            /// Writes without ordering anything else.
            #[inline(always)]
            pub fn store_relaxed(&self, value: $int) {
                step();
                self.0.store(value, Ordering::Relaxed);
            }

            /// Reads; what the writer of the value did before its Release on `edge` is then visible.
            #[inline(always)]
            pub fn load_acquire(&self, edge: Edge) -> $int {
                step();
                self.0.load(order(edge, End::Acquire))
            }

            /// Writes; whoever reads the value with Acquire on `edge` sees all that was done before.
            #[inline(always)]
            pub fn store_release(&self, value: $int, edge: Edge) {
                step();
                self.0.store(value, order(edge, End::Release));
            }

            /// Writes `new` if the word is still `current`, with Release on `edge`; else returns what it is.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline(always)]
            pub fn cas_release(&self, current: $int, new: $int, edge: Edge) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, order(edge, End::Release), Ordering::Relaxed)
            }

            /// Writes `new` if the word is still `current`; what the writer of `current` did before its Release on `edge` is
            /// then visible. Else returns what it is.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline(always)]
            pub fn cas_acquire(&self, current: $int, new: $int, edge: Edge) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, order(edge, End::Acquire), Ordering::Relaxed)
            }

            /// Writes, and returns the old value; whoever reads the new one with Acquire on `edge` sees all that was done
            /// before.
            #[inline(always)]
            pub fn swap_release(&self, value: $int, edge: Edge) -> $int {
                step();
                self.0.swap(value, order(edge, End::Release))
            }

            /// Writes `new` if the word is still `current`, without ordering anything else.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline(always)]
            pub fn cas_relaxed(&self, current: $int, new: $int) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
            }

            /// Changes the word in one atomic step, and returns what it was; Acquire and Release on `edge`: what others did
            /// before they changed it is visible, and what we did before is to those who change it next.
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

            /// As `update_acq_rel`, of a word at some address.
            ///
            /// # Safety
            /// The word is initialised, aligned, mapped and writable, and others use it meanwhile only by atomic
            /// operations.
            #[cfg(not(nemesia_loom))]
            #[inline]
            pub unsafe fn update_acq_rel_at(
                word: core::ptr::NonNull<$int>,
                edge: Edge,
                change: impl Fn($int) -> $int,
            ) -> $int {
                // SAFETY: the caller's promise, and this type is an atomic without more; the reference does not outlive this
                // call.
                unsafe { word.cast::<Self>().as_ref() }.update_acq_rel(edge, change)
            }

            /// Models know no addresses: they call `update_acq_rel`.
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
                // SAFETY: the caller's promise.
                let old = unsafe { word.read() };
                // SAFETY: the caller's promise.
                unsafe { word.write(change(old)) };
                old
            }

            /// Adds one without ordering anything else, and returns the old value.
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

/// The type of word on which the kernel can make a process sleep.
#[cfg(not(nemesia_loom))]
pub type FutexWord = AtomicU32;

impl Word32 {
    /// The atomic itself, for the futex system call.
    #[cfg(not(nemesia_loom))]
    pub fn as_futex(&self) -> &FutexWord {
        &self.0
    }
}

/// How the two fences of [`Edge::Sleep`] are paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceMode {
    /// The sleeper makes every process of the world execute a barrier (`membarrier`), so the waker needs only
    /// to keep the compiler from reordering. The waker's critical path stays free of fences.
    Asymmetric,
    /// Both execute a sequentially consistent fence.
    Symmetric,
}

/// The waker's side of [`Edge::Sleep`]: between publishing work and reading the sleeper's flag.
#[inline(always)]
pub fn waker_fence(mode: FenceMode) {
    #[cfg(not(nemesia_loom))]
    match mode {
        FenceMode::Asymmetric => compiler_fence(Ordering::SeqCst),
        FenceMode::Symmetric => fence(Ordering::SeqCst),
    }
    // Loom has no membarrier: models of it run the symmetric form, whose guarantee the asymmetric one equals.
    #[cfg(nemesia_loom)]
    {
        step();
        if mode == FenceMode::Symmetric && !model::is_mutant(Edge::Sleep, End::Release) {
            fence(Ordering::SeqCst);
        }
    }
}

/// The waker's side of [`Edge::Sleep`] where the sleeper asks for it: before reading the sleeper's flag once more.
#[inline]
pub fn asked_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Sleep, End::Release) {
        return;
    }
    fence(Ordering::SeqCst);
}

/// The sleeper's side of [`Edge::Sleep`]: between raising its flag and looking for work a last time.
///
/// In [`FenceMode::Asymmetric`] the caller issues `membarrier` besides, or has asked the wakers for [`asked_fence`]; this fence
/// alone is not enough.
#[inline]
pub fn sleeper_fence() {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::Sleep, End::Acquire) {
        return;
    }
    fence(Ordering::SeqCst);
}

/// The receiver's side of [`Edge::ShareClaim`]: between publishing what it has claimed and looking at the sender's claim.
#[inline]
pub fn receiver_fence() {
    claim_fence(End::Release);
}

/// The sender's side of [`Edge::ShareClaim`]: between publishing what it has claimed and looking at the receiver's claim.
#[inline]
pub fn helper_fence() {
    claim_fence(End::Acquire);
}

#[inline(always)]
fn claim_fence(end: End) {
    step();
    #[cfg(nemesia_loom)]
    if model::is_mutant(Edge::ShareClaim, end) {
        return;
    }
    let _ = end;
    fence(Ordering::SeqCst);
}

/// Tells the processor that this is a spin loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(nemesia_loom))]
    core::hint::spin_loop();
    #[cfg(nemesia_loom)]
    loom::thread::yield_now();
}
