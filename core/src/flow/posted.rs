//! Credits that are posted receives: what a [channel](crate::port::channel) may send to the other end of a connection.
//!
//! On an RDMA fabric a message needs a receive that its target has posted before; one that finds none waits, or ends its
//! connection. So a *credit* is a posted receive of the peer's, and belongs to one connection. Every packet takes one, also
//! one that only says how many there are.
//!
//! - **Return.** A receive that was taken and posted again is a new credit. Every packet says how many receives were ever
//!   posted (a total, which wraps around): the usual way back is by *piggyback*. When half of an end's receives are not
//!   returned, and it has nothing to send, it sends an *update*, a packet without content.
//! - **Reserve.** Ordinary packets leave one credit, and only an update that returns two or more may take it. Let an end have
//!   none left that it may use: then all but one of the other's receives are unreturned there, an update is due, and the
//!   other has its reserve for it, or gets credits by an update that crosses. As an update returns at least two and takes
//!   one, updates answer each other only so often. Hence no connection has fewer than [`LEAST`] receives.
//! - **Growth.** An end whose peer has used all but the reserve posts more receives, from a [`Pool`] that all connections of the
//!   process share (paper 2, section 2.3.2, asks for credits that are dynamic, not a static number a connection).
//! - **Shares.** Nobody gets it all: a connection grows only while it has fewer receives beyond its first ones than are left
//!   to the others, so that each busy one more gets as many as the rest (the dynamic threshold of Choudhury and Hahne,
//!   *Dynamic queue length thresholds for shared-memory packet switches*, IEEE/ACM ToN 6(2), 1998); and what connections
//!   begin with that do not exist yet is not given away, up to half of the buffers ([`Pool::may_grow`]). Who has more than
//!   twice as many as one that runs dry, when there are no more, is called back although it is busy.
//! - **Shrinkage.** Each packet also says how many receives its sender *wants to keep*. A peer that has more credits than
//!   that gives them up, by packets without content. So receives of an idle connection, which no fabric takes back,
//!   return to the pool when others need them; those of a busy one are just not posted again.
//!
//! `verification` explores every interleaving of two small ends: `cargo sim` does it first.
#![forbid(unsafe_code)]

/// The fewest receives of a connection: one for the reserve, and two for an update to return.
pub const LEAST: u32 = 3;
/// The most.
pub const MOST: u32 = 1 << 15;
/// Where all totals begin: so near to their end that every connection that lasts wraps around.
pub const FIRST: u32 = u32::MAX - 6;

/// What a peer said of its receives can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a total of {posted} receives, {target} to be kept, is impossible")]
pub struct StampFault {
    /// The total.
    pub posted: u32,
    /// How many it wants to keep.
    pub target: u32,
}

/// A peer sent a packet for which it had no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet came for which no receive was promised")]
pub struct Overdrawn;

/// What every packet says of its sender's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Receives ever posted on this connection, from [`FIRST`] on; wraps around.
    pub posted: u32,
    /// Receives that are to be kept posted.
    pub target: u32,
}

/// What to do with the buffer of a packet that was dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Post it again, then say so by [`Credits::posted`].
    Post,
    /// Give it back to the pool: the connection has one less.
    Retire,
}

/// One end of a connection: both directions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credits {
    /// Packets ever sent, and receives that the peer ever posted, as far as it said.
    sent: u32,
    limit: u32,
    /// Receives that the peer wants to keep.
    kept: u32,
    /// Receives ever posted, those that the peer was told of, and packets that ever came.
    posted: u32,
    told: u32,
    arrived: u32,
    /// Receives to be kept, and what the peer was told of that.
    target: u32,
    told_target: u32,
    /// Buffers: posted, or with a packet that is not dealt with.
    size: u32,
}

impl Credits {
    /// An end that begins with `receives` posted, at least [`LEAST`], which the peer is told with the connection.
    pub const fn new(receives: u32) -> Self {
        let posted = FIRST.wrapping_add(receives);
        Self {
            sent: FIRST,
            limit: FIRST,
            kept: MOST,
            posted,
            told: posted,
            arrived: FIRST,
            target: receives,
            told_target: receives,
            size: receives,
        }
    }

    /// The peer has said with how many receives it begins. Packets of it may have come before.
    ///
    /// # Errors
    /// They are fewer than [`LEAST`] or more than [`MOST`].
    pub const fn open(&mut self, receives: u32) -> Result<(), StampFault> {
        let posted = FIRST.wrapping_add(receives);
        if receives < LEAST || receives > MOST {
            return Err(StampFault { posted, target: receives });
        }
        let more = posted.wrapping_sub(self.limit);
        if more <= MOST {
            self.limit = posted;
        }
        Ok(())
    }

    /// Packets that the peer has receives for.
    pub const fn left(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Whether a packet may be sent: the reserve is for updates.
    #[inline]
    pub fn can_send(&self) -> bool {
        #[cfg(nemesia_blunder)]
        if crate::blunder::made(crate::blunder::Blunder::SpendReserve) {
            return self.left() > 0;
        }
        self.left() > 1
    }

    /// Receives that the peer does not know of.
    pub const fn unreturned(&self) -> u32 {
        self.posted.wrapping_sub(self.told)
    }

    /// Whether an update is due and can be sent.
    #[inline]
    pub fn can_update(&self) -> bool {
        let half = self.size.div_ceil(2);
        self.left() > 0 && self.unreturned() >= if half < 2 { 2 } else { half }
    }

    /// Whether the peer has to learn that fewer receives are kept.
    pub const fn is_recalling(&self) -> bool {
        self.target < self.told_target
    }

    /// Whether we have more credits than the peer wants to keep receives: one is to be given up.
    pub const fn has_surplus(&self) -> bool {
        self.left() > self.kept
    }

    /// What the next packet says.
    pub const fn stamp(&self) -> Stamp {
        Stamp { posted: self.posted, target: self.target }
    }

    /// A packet with that stamp was sent.
    #[inline]
    pub const fn sent(&mut self) {
        debug_assert!(self.left() > 0);
        self.sent = self.sent.wrapping_add(1);
        self.told = self.posted;
        self.told_target = self.target;
    }

    /// A packet has come. First of all it takes a credit.
    ///
    /// # Errors
    /// The peer had none.
    #[inline]
    pub const fn arrive(&mut self) -> Result<(), Overdrawn> {
        if self.arrived == self.told {
            return Err(Overdrawn);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// What a packet said, in the order of its connection. True: there are more credits than before.
    ///
    /// # Errors
    /// No honest peer says that; nothing has changed.
    #[inline]
    pub fn hear(&mut self, stamp: Stamp) -> Result<bool, StampFault> {
        let Stamp { posted, target } = stamp;
        let more = posted.wrapping_sub(self.limit);
        if more > MOST || self.left() + more > MOST || !(LEAST..=MOST).contains(&target) {
            return Err(StampFault { posted, target });
        }
        self.limit = posted;
        self.kept = target;
        #[cfg(nemesia_blunder)]
        if crate::blunder::made(crate::blunder::Blunder::CountCreditTwice) {
            self.limit = posted.wrapping_add(more);
        }
        Ok(more > 0)
    }

    /// What becomes of the buffer of a packet that was dealt with.
    #[inline]
    pub const fn release(&mut self) -> Next {
        if self.size > self.target {
            self.size -= 1;
            return Next::Retire;
        }
        Next::Post
    }

    /// A buffer that was released is posted again.
    #[inline]
    pub const fn posted(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// A buffer has left the connection without being retired: it could not be posted, or the connection has ended.
    pub const fn lost(&mut self) {
        self.size = self.size.saturating_sub(1);
    }

    /// Buffers beyond those that the connection can't do without.
    pub const fn extra(&self) -> u32 {
        self.size.saturating_sub(LEAST)
    }

    /// Whether the peer had used all but the reserve when its last packet came.
    #[inline]
    pub const fn is_dry(&self) -> bool {
        self.told.wrapping_sub(self.arrived) <= 1
    }

    /// How many receives would be worth posting for a peer that ran dry: as many again, `most` in all.
    pub const fn wanted(&self, most: u32) -> u32 {
        let room = most.saturating_sub(self.size);
        if self.size < room { self.size } else { room }
    }

    /// What was to be given up is kept.
    pub const fn keep(&mut self) {
        if self.target < self.size {
            self.target = self.size;
        }
    }

    /// A buffer from the pool was posted besides.
    pub const fn grown(&mut self) {
        self.size += 1;
        if self.target < self.size {
            self.target = self.size;
        }
        self.posted();
    }

    /// Keeps half of the receives only, from now on. False when there are no more than must be, or so few are kept already.
    pub const fn shrink(&mut self) -> bool {
        let half = if self.size / 2 > LEAST { self.size / 2 } else { LEAST };
        let less = half < self.target;
        if less {
            self.target = half;
        }
        less
    }

    /// Buffers of the connection: posted, or with a packet that is not dealt with.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Receives that the peer may still use.
    pub const fn window(&self) -> u32 {
        self.posted.wrapping_sub(self.arrived)
    }
}

/// The buffers of the process, counted. Each connection has some of its own, which nobody else gets; the rest is for whoever
/// comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Buffers that nobody uses, and how many of them are kept for those who have not used all of their own.
    free: u32,
    owed: u32,
}

impl Pool {
    /// No buffers.
    pub const fn new() -> Self {
        Self { free: 0, owed: 0 }
    }

    /// There are more.
    pub const fn add(&mut self, buffers: u32) {
        self.free += buffers;
    }

    /// Buffers that nobody uses.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Buffers that whoever comes first may have.
    pub const fn spare(&self) -> u32 {
        self.free.saturating_sub(self.owed)
    }

    /// Whether a connection with so many buffers beyond its first ones may take another that may be anybody's, while `absent`
    /// of them are wanted for connections that do not exist yet, of `all` buffers that there are.
    pub fn may_grow(&self, extra: u32, absent: u32, all: u32) -> bool {
        #[cfg(nemesia_blunder)]
        if crate::blunder::made(crate::blunder::Blunder::GrowGreedily) {
            return self.spare() > 0;
        }
        #[cfg(nemesia_blunder)]
        if crate::blunder::made(crate::blunder::Blunder::OverdrawPool) {
            return extra < self.free;
        }
        let half = all / 2;
        let kept = if absent < half { absent } else { half };
        extra < self.spare().saturating_sub(kept)
    }

    /// Keeps buffers for somebody. False when there are too few.
    pub const fn reserve(&mut self, buffers: u32) -> bool {
        let can = buffers <= self.spare();
        if can {
            self.owed += buffers;
        }
        can
    }

    /// They are kept no longer; all are back.
    pub const fn unreserve(&mut self, buffers: u32) {
        self.owed = self.owed.saturating_sub(buffers);
    }

    /// Takes a buffer: one that is kept for the caller, or one that may be anybody's. False when there is none.
    pub fn take(&mut self, own: bool) -> bool {
        let can = if own { self.free > 0 } else { self.may_take() };
        if can {
            self.free -= 1;
            self.owed = self.owed.saturating_sub(u32::from(own));
        }
        can
    }

    fn may_take(&self) -> bool {
        #[cfg(nemesia_blunder)]
        if crate::blunder::made(crate::blunder::Blunder::OverdrawPool) {
            return self.free > 0;
        }
        self.spare() > 0
    }

    /// A buffer is back, and kept for its user again, or not.
    pub fn put(&mut self, own: bool) {
        self.free += 1;
        self.owed += u32::from(own);
    }

    /// Whether what is kept for somebody is there.
    pub const fn is_sound(&self) -> bool {
        self.owed <= self.free
    }
}

#[cfg(test)]
mod tests;
