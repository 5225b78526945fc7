//! Injected faults: logic errors that the engine commits on request of the simulation. A simulation that does
//! not detect one is not thorough enough.
//!
//! Compiled only with the private cfg `nemesia_injected_fault`; the shipped library contains none of this.
//! The name of a fault appears, behind the cfg, at the place where it is injected.
#![forbid(unsafe_code)]

use crate::sync::Word32;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum InjectedFault {
    /// A receive with a wildcard that was posted first does not get the message.
    PreferExact,
    /// A blocking receive takes a message before a posted receive that matches it.
    BypassPosted,
    /// A small message overtakes those that wait.
    OvertakePending,
    /// A synchronous send completes before it is matched.
    ForgetSynchronous,
    /// Freed memory of the store is granted to no peer.
    KeepCredit,
    /// A receiver grants credit for memory that it has not committed.
    GrantUncommitted,
    /// The bytes of a failed copy are not requested again.
    SkipPart,
    /// Messages that a dead process only announced can still be received.
    KeepOffers,
    /// A message of a dead process that travelled whole with its announcement cannot be received.
    DropWhole,
    /// A flush does not wait for earlier operations.
    ForgetFlush,
    /// A flush counts operations as done that were sent to a process which has left.
    AssumeDone,
    /// A put that completes at its target is complete when it has left.
    ForgetConfirm,
    /// A put overtakes the answer to a get in spite of the fence between them.
    ForgetFence,
    /// A packet that is not eager is not counted, and so appears to be eager.
    ForgetCount,
    /// Credit spent with a process counts for the next process of the same rank.
    KeepAllowance,
    /// Messages of a process can still be received after the next process of the same rank has connected.
    KeepMessages,
    /// An active message of several packets is handled before the last packet has arrived.
    RunEarly,
    /// The old values of a later packet overwrite those of the first.
    MixGroups,
    /// Replies of handlers use only pool places while there are any.
    ForgetShare,
    /// A direct put overtakes operations that were sent in packets before it.
    OvertakePackets,
    /// The end of a write counts as its arrival at the target, on every fabric.
    TrustWrites,
    /// A description of a region is used after its owner has withdrawn it.
    IgnoreWithdrawal,
    /// The exposure of a message's bytes is not revoked when the message is complete.
    ForgetRevoke,
    /// A message is complete when the first of its accesses has ended.
    CompleteEarly,
    /// The failure of an access that ends later is ignored.
    IgnoreFailure,
    /// The receiver takes the described bytes for the beginning of the message.
    WrongOrigin,
    /// The runs of a list are taken for those of the peer's next list.
    KeepRuns,
    /// A synchronous eager message is acknowledged when it is stored, before a receive has matched it.
    AcknowledgeUnmatched,
    /// An acknowledgement for which there is no space is never sent.
    ForgetAcknowledgement,
    /// A message that waits to leave together with others is not in the queue of its peer.
    ForgetGathered,
    /// The immediate data of an announced message are lost.
    DropImmediate,
    /// A message whose bytes follow unasked is sent although there is credit only for its RTS.
    SendUncredited,
    /// A receive takes a stored message of which parts are missing for a whole one.
    TakeUnfinished,
    /// A peer that is added does not take a reserve from those that are left.
    ForgetReserve,
    /// A peer gets credit before the memory of its reserve is committed.
    PromiseUncommitted,
    /// The account of a peer that was added before is opened again.
    OpenTwice,
    /// A rank that an operation names for the first time is not reported as wanted.
    ForgetWanted,
    /// A number is given to the next peer although messages of the former one are stored.
    InheritMessages,
    /// A number counts as free although an outcome that names its former peer was not taken.
    ForgetOutcomes,
    /// A complete operation does not enter the completion queue.
    LoseCompletion,
    /// The completion queue returns an entry twice.
    RepeatCompletion,
    /// The completion queue exchanges two entries.
    ReorderCompletions,
    /// Two messages get the same place in a multi-receive buffer.
    PlaceTwice,
    /// A multi-receive buffer is free before all its messages are complete.
    FreeEarly,
    /// A message that is stored for want of a slot is overtaken by later ones for the same multi-receive buffer.
    OvertakeStored,
    /// The credit that is reserved for updates is used for other packets.
    SpendReserve,
    /// A packet's report of posted receives counts twice.
    CountCreditTwice,
    /// A growing connection takes buffers that are reserved for others.
    OverdrawPool,
    /// A receive is posted again, and no update reports it to the peer.
    ForgetUpdate,
    /// A packet that arrives too early is delivered at once.
    SkipWindow,
    /// The buffer of a packet without content is never freed.
    LeakBuffer,
    /// A connection grows while there are buffers, whatever the other connections need.
    GrowGreedily,
    /// The last packet of a process that leaves is not sent.
    ForgetClose,
    /// The last packet of a process that leaves is obeyed before earlier packets have arrived.
    CloseEarly,
    /// The last packet of a process that leaves has no completion, so that the process does not wait for it.
    QuietClose,
    /// A process that was started again is accepted at once.
    AcceptUnasked,
    /// A further connection is accepted from a process that has no first one.
    AcceptFurther,
    /// An access to a peer's memory is reported as ended when its work request is posted.
    EndAccessEarly,
    /// A buffer stays registered, and open to the peer, after its exposure was revoked.
    KeepRegion,
    /// The report of the end of writes is accepted from a peer to which the buffer is not exposed.
    TrustNotice,
    /// The last bytes of a slot are polled on a fabric that does not promise the order within a write.
    TrustDisorder,
    /// A packet of the lap before is taken for the next one of a ring.
    ForgetLap,
    /// Of the headers of a ring, only the first one is kept for those that are cached.
    StaleHeader,
    /// The free slots of a ring are never reported by themselves.
    ForgetSlots,
    /// A process sleeps although a peer may still write into its ring.
    SleepUnheard,
    /// The placement takes a payload for sent of which the stream has taken a part.
    DropRest,
    /// Bytes that were read ahead into a receive, and are no message for it, are forgotten.
    ForgetAhead,
    /// A port reports that it has taken bytes which it has not.
    ForgetUntaken,
    /// The placement reports to its peer only the first receives.
    ForgetRoom,
    /// The placement acknowledges an operation before its payload has arrived.
    AckEarly,
    /// The placement forgets a report that it holds back.
    ForgetHeld,
    /// The placement does not watch a connection again when another one is readable.
    ForgetWatch,
    /// A process does not check the proof of a caller.
    SkipProof,
    /// A challenge can be answered more than once.
    ReuseChallenge,
    /// A caller uses the same nonce for every call.
    RepeatNonce,
    /// The proof of the called process is that of the caller.
    UnboundDirection,
    /// The proof of a caller does not cover whom it calls.
    ForgetCallee,
    /// A process answers a call from a peer with which it is connected, and does not end that connection.
    AnswerConnected,
    /// A process makes one connection more than it may have.
    ForgetLimit,
    /// A process that admits known peers only answers an unknown one.
    AdmitUnknown,
    /// The identifier of a released peer names the next peer in its slot.
    ForgetGeneration,
    /// The loss of a call that was answered and not confirmed counts as the end of a connection.
    EndUnconfirmed,
    /// A call that was answered, not confirmed, and given up keeps its place for ever.
    KeepUnconfirmed,
    /// A rank whose connection has ended is answered when it calls again.
    ReadmitRank,
    /// Cells that a former peer holds are filled again without a mark.
    RefillUnmarked,
    /// A receiver looks at the mark of its former peer when it finds a packet, and not after it has read the packet.
    TrustFound,
    /// The number of a former peer is used again while that peer has cells.
    FreeLeftNumber,
    /// The headers of cells still name a peer whose connection has ended.
    KeepCellHeaders,
    /// A process that ends a connection does not say that it reads no more cells.
    ForgetEndOfReading,
    /// A process that ends a connection does not say that its buffers are its own again.
    ForgetEnd,
    /// A process keeps no cells for peers that hold none.
    KeepNoCells,
    /// A descriptor ends when its transfers have begun.
    EndTransferEarly,
    /// A descriptor with a fence starts before earlier ones have ended.
    ForgetQueueFence,
    /// A receive descriptor of the other side is used for one more message.
    KeepMirrored,
    /// A datagram that joins queue pairs is not sent again.
    SendOnce,
    /// A datagram for another connection is heard.
    HearAny,
    /// A repeated acceptance is not confirmed again.
    ConfirmOnce,
    /// A link accepts any proof.
    SkipLinkProof,
    /// Of two calls of a link that cross, each process answers the other's.
    CountBothLinkCalls,
    /// Of two calls of a link that cross, each process waits for the answer to its own.
    CountNoLinkCall,
    /// A call that was parked is not decided when the own call has failed.
    ForgetParked,
    /// A link answers calls that their caller has abandoned.
    HearAbandoned,
    /// A caller that is answered still hears the calls that the answer voids.
    HearVoided,
    /// A further attempt has the number of the last one.
    RepeatLinkCall,
    /// The word of a call ends an open link.
    TrustCall,
    /// A caller may claim an address from another place.
    TrustClaim,
    /// If nothing listens at the first carrier of an address, the others are not tried.
    KeepCarrier,
    /// The limit of a call that is held goes on.
    ForgetHold,
    /// A passing refusal ends a call.
    EndAtPassing,
    /// The loss of a carrier ends a link whose confirmation was not welcomed.
    EndConfirmed,
    /// A caller does not wait until its confirmation is welcomed.
    OpenUnwelcomed,
    /// An answer that is not confirmed keeps its place when its caller is gone.
    KeepAnswered,
    /// A repeated confirmation is not welcomed again.
    WelcomeOnce,
    /// A datagram of a link is repeated only once.
    RepeatOnce,
    /// The resources of a link are not freed.
    ForgetUnmake,
    /// A process that disconnects does not say so.
    LeaveSilently,
    /// A call has no limit.
    WaitForEver,
    /// The door has room for any number of connections.
    AdmitAll,
    /// Connections that do not prove themselves stay.
    KeepDoor,
    /// The departure of a process without a link is not heard.
    ForgetDeparture,
    /// A former process of a rank counts as a later one.
    AdmitFormer,
    /// A restarted rank is answered without the word of the launcher.
    ReadmitUnasked,
    /// A rank claims its rank to processes of other worlds, too.
    ClaimEverywhere,
    /// An endpoint that ends without having been closed seems to be closed.
    ForgetDropped,
}

impl InjectedFault {
    /// All injected faults.
    pub const ALL: [InjectedFault; 124] = [
        InjectedFault::PreferExact,
        InjectedFault::BypassPosted,
        InjectedFault::OvertakePending,
        InjectedFault::ForgetSynchronous,
        InjectedFault::KeepCredit,
        InjectedFault::GrantUncommitted,
        InjectedFault::SkipPart,
        InjectedFault::KeepOffers,
        InjectedFault::DropWhole,
        InjectedFault::ForgetFlush,
        InjectedFault::AssumeDone,
        InjectedFault::ForgetConfirm,
        InjectedFault::ForgetFence,
        InjectedFault::ForgetCount,
        InjectedFault::KeepAllowance,
        InjectedFault::KeepMessages,
        InjectedFault::RunEarly,
        InjectedFault::MixGroups,
        InjectedFault::ForgetShare,
        InjectedFault::OvertakePackets,
        InjectedFault::TrustWrites,
        InjectedFault::IgnoreWithdrawal,
        InjectedFault::ForgetRevoke,
        InjectedFault::CompleteEarly,
        InjectedFault::IgnoreFailure,
        InjectedFault::WrongOrigin,
        InjectedFault::KeepRuns,
        InjectedFault::AcknowledgeUnmatched,
        InjectedFault::ForgetAcknowledgement,
        InjectedFault::ForgetGathered,
        InjectedFault::DropImmediate,
        InjectedFault::SendUncredited,
        InjectedFault::TakeUnfinished,
        InjectedFault::ForgetReserve,
        InjectedFault::PromiseUncommitted,
        InjectedFault::OpenTwice,
        InjectedFault::ForgetWanted,
        InjectedFault::InheritMessages,
        InjectedFault::ForgetOutcomes,
        InjectedFault::LoseCompletion,
        InjectedFault::RepeatCompletion,
        InjectedFault::ReorderCompletions,
        InjectedFault::PlaceTwice,
        InjectedFault::FreeEarly,
        InjectedFault::OvertakeStored,
        InjectedFault::SpendReserve,
        InjectedFault::CountCreditTwice,
        InjectedFault::OverdrawPool,
        InjectedFault::ForgetUpdate,
        InjectedFault::SkipWindow,
        InjectedFault::LeakBuffer,
        InjectedFault::GrowGreedily,
        InjectedFault::ForgetClose,
        InjectedFault::CloseEarly,
        InjectedFault::QuietClose,
        InjectedFault::AcceptUnasked,
        InjectedFault::AcceptFurther,
        InjectedFault::EndAccessEarly,
        InjectedFault::KeepRegion,
        InjectedFault::TrustNotice,
        InjectedFault::TrustDisorder,
        InjectedFault::ForgetLap,
        InjectedFault::StaleHeader,
        InjectedFault::ForgetSlots,
        InjectedFault::SleepUnheard,
        InjectedFault::DropRest,
        InjectedFault::ForgetAhead,
        InjectedFault::ForgetUntaken,
        InjectedFault::ForgetRoom,
        InjectedFault::AckEarly,
        InjectedFault::ForgetHeld,
        InjectedFault::ForgetWatch,
        InjectedFault::SkipProof,
        InjectedFault::ReuseChallenge,
        InjectedFault::RepeatNonce,
        InjectedFault::UnboundDirection,
        InjectedFault::ForgetCallee,
        InjectedFault::AnswerConnected,
        InjectedFault::ForgetLimit,
        InjectedFault::AdmitUnknown,
        InjectedFault::ForgetGeneration,
        InjectedFault::EndUnconfirmed,
        InjectedFault::KeepUnconfirmed,
        InjectedFault::ReadmitRank,
        InjectedFault::RefillUnmarked,
        InjectedFault::TrustFound,
        InjectedFault::FreeLeftNumber,
        InjectedFault::KeepCellHeaders,
        InjectedFault::ForgetEndOfReading,
        InjectedFault::ForgetEnd,
        InjectedFault::KeepNoCells,
        InjectedFault::EndTransferEarly,
        InjectedFault::ForgetQueueFence,
        InjectedFault::KeepMirrored,
        InjectedFault::SendOnce,
        InjectedFault::HearAny,
        InjectedFault::ConfirmOnce,
        InjectedFault::SkipLinkProof,
        InjectedFault::CountBothLinkCalls,
        InjectedFault::CountNoLinkCall,
        InjectedFault::ForgetParked,
        InjectedFault::HearAbandoned,
        InjectedFault::HearVoided,
        InjectedFault::RepeatLinkCall,
        InjectedFault::TrustCall,
        InjectedFault::TrustClaim,
        InjectedFault::KeepCarrier,
        InjectedFault::ForgetHold,
        InjectedFault::EndAtPassing,
        InjectedFault::EndConfirmed,
        InjectedFault::OpenUnwelcomed,
        InjectedFault::KeepAnswered,
        InjectedFault::WelcomeOnce,
        InjectedFault::RepeatOnce,
        InjectedFault::ForgetUnmake,
        InjectedFault::LeaveSilently,
        InjectedFault::WaitForEver,
        InjectedFault::AdmitAll,
        InjectedFault::KeepDoor,
        InjectedFault::ForgetDeparture,
        InjectedFault::AdmitFormer,
        InjectedFault::ReadmitUnasked,
        InjectedFault::ClaimEverywhere,
        InjectedFault::ForgetDropped,
    ];

    /// Returns whether the fault concerns a [channel](crate::port::channel) or what is below it, and not the engine.
    pub const fn is_of_channel(self) -> bool {
        self as u32 >= InjectedFault::SpendReserve as u32 && (self as u32) < InjectedFault::SkipProof as u32
    }

    /// Returns whether the fault concerns one-sided operations by remote memory access.
    pub const fn is_of_direct_access(self) -> bool {
        matches!(
            self,
            InjectedFault::OvertakePackets | InjectedFault::TrustWrites | InjectedFault::IgnoreWithdrawal
        )
    }

    /// Returns whether the fault concerns [`job_key`](crate::job_key).
    pub const fn is_of_keys(self) -> bool {
        self as u32 >= InjectedFault::SkipProof as u32
            && (self as u32) < InjectedFault::AnswerConnected as u32
    }

    /// Returns whether the fault concerns [`peers`](crate::peers).
    pub const fn is_of_peers(self) -> bool {
        let number = self as u32;
        number >= InjectedFault::AnswerConnected as u32 && number < InjectedFault::RefillUnmarked as u32
    }

    /// Returns whether the fault concerns the end of a connection over shared memory.
    pub const fn is_of_cells(self) -> bool {
        self as u32 >= InjectedFault::RefillUnmarked as u32
            && (self as u32) < InjectedFault::EndTransferEarly as u32
    }

    /// Returns whether the fault concerns [`via`](crate::via).
    pub const fn is_of_vipl(self) -> bool {
        self as u32 >= InjectedFault::EndTransferEarly as u32
            && (self as u32) < InjectedFault::SendOnce as u32
    }

    /// Returns whether the fault concerns [`joining`](crate::joining).
    pub const fn is_of_joining(self) -> bool {
        self as u32 >= InjectedFault::SendOnce as u32 && !self.is_of_links()
    }

    /// Returns whether the fault concerns [`link`](crate::link).
    pub const fn is_of_links(self) -> bool {
        self as u32 >= InjectedFault::SkipLinkProof as u32
    }
}

/// The active fault, plus one; 0 if there is none.
static MADE: Word32 = Word32::new(0);

/// Activates this fault in this process, or none.
pub fn make(injected_fault: Option<InjectedFault>) {
    MADE.store_relaxed(injected_fault.map_or(0, |injected_fault| injected_fault as u32 + 1));
}

/// Returns whether this fault is active.
pub(crate) fn injected(injected_fault: InjectedFault) -> bool {
    MADE.load_relaxed() == injected_fault as u32 + 1
}
