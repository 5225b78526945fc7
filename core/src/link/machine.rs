//! The life of a connection between two processes, as one machine without I/O.
//!
//! One link for each peer, service and instance, whatever carries its messages. [`Links`](table::Links) has all links
//! of a process. Its owner passes in the time, messages, connections and losses, and lends the storage. The machine
//! decides, and asks the owner ([`LinkOwner`](terms::LinkOwner)) to dial, send, make, join and report. Every call does
//! a bounded amount of work, but for `close_next` and a departure of a rank that was never met: they look at all links
//! or ranks.
//!
//! | stage | meaning | holds |
//! |---|---|---|
//! | idle | there is nothing; a rank keeps its place | |
//! | calling (caller) | a carrier is being reached, the challenge has not come, or the next attempt is due | number, at most one carrier |
//! | proving (caller) | the call with its proof and its offers was sent | what `make` made |
//! | held (called) | a restarted rank waits until the owner readmits it | the carrier |
//! | answered (called) | the answer was sent | what `grant` made |
//! | confirmed (caller) | the answer is right; the path is being made, or the confirmation was sent | what `make` made; packets wait |
//! | open | packets pass | everything |
//! | leaving | this process has disconnected; its last packets leave | everything, for a limited time |
//! | ended | died, left, disconnected, lost, refused or unreachable | number and resources, until the owner frees them |
//!
//! Beside these, a link has at most one call of the peer that *waits*: *parked*, silently, while the own call counts;
//! or *held*, with a message, while a former connection has not ended or is not freed.
//!
//! | stage | input | next | output |
//! |---|---|---|---|
//! | idle; ended further peer that is freed | the user speaks | calling | dial the first carrier: hand-off if the machine is ours, else IP, else datagrams |
//! | calling | hand-off is reached; challenge | proving | make what is offered; call with proof |
//! | calling | busy or full; no place or resource in this process | calling | again after 1 to 100 ms, doubling; a shortage of this process never ends a peer, and a full queue shows that a rank lives |
//! | calling | nothing listens | calling, ended | the next carrier of the address (copies of a machine have equal boots); none left: died |
//! | calling, proving, confirmed | time over | ended | unreachable, or refused if the last word of the peer was a passing refusal; a rank goes on while its kernel has taken the connection, or shows life |
//! | calling | proved call | answered | drop ours, which the peer has not heard; the answer has the number of our calls, which voids them |
//! | proving | proved call, ours counts | same | park it; an older parked one is dropped |
//! | proving | proved call, the peer's counts | answered | drop ours in silence, as before |
//! | proving | hold | same | repeats become rare; the limit begins anew, for further peers at most twice |
//! | proving | answer that is right | confirmed | join the path, confirm; drop the parked call that the answer voids |
//! | proving | answer with another proof | ended refused | refuse with words, so that the peer frees at once |
//! | calling to confirmed | passing refusal; carrier lost | calling, answered | a parked call is decided now; else the next attempt, with the next number |
//! | calling to confirmed | final refusal; leave; process ended | ended | report, with the words |
//! | confirmed | no path | ended refused | refuse with words; other offers are the owner's to try first |
//! | confirmed | no path for want of something in this process | calling | passing refusal, so that the peer frees at once; the next attempt |
//! | confirmed | welcome; or the confirmation was sent over hand-off | open | report; packets leave |
//! | idle | proved call | answered, held | ask the owner: answer, or refuse; the restarted process of a rank is held |
//! | held | a later call or incarnation | held | only the latest is kept |
//! | held | confirmed by the launcher, then readmitted | answered, calling | the former process has died, also if it was never met; answer, or call if the carrier is lost |
//! | held | the launcher does not know the process; nonsense | idle | refuse for good, in words |
//! | answered | right confirmation | open | settle, welcome (not over hand-off), report |
//! | answered | carrier lost, passing refusal | idle, calling | unmake; call if packets wait, or if it is a rank, which shows what it is |
//! | answered | a later call | answered | drop the former, answer again |
//! | answered | too old, and its place is needed | idle | hand-off: end the reading side, then drop; others: passing refusal (without welcome the caller has sent nothing) |
//! | open, leaving, ended and not freed | proved call | same | hold it until the own end is seen and freed, at most 5 s; the word of a call ends nothing |
//! | open | path or carrier lost; process ended; leave | ended | after the last packets that came |
//! | open | the user disconnects | leaving | when everything has left, or the time is over: goodbye, on datagrams repeated until *done* |
//! | ended rank | its call | ended | refuse for good, so that both sides agree |
//! | any rank | call of a lower incarnation | same | refuse for good: a later process of the rank is known |
//! | not open | proved departure, from the place that its address names | ended | left, or dropped |
//! | any | other version, nonsense | same or ended | one refusal with both versions |
//!
//! Of two calls that cross after both were sent, that of the higher rank counts, else that of the smaller address,
//! whatever carriers they came by. The number of a call is in it and in each answer, so that a call that was abandoned
//! is recognised.
//!
//! Before a link there is the *door*: connections without proof, a limited number for each kind of carrier and for a
//! limited time. A challenge takes no memory on datagrams. The owner lends at least as many carriers as the limits of
//! the doors and of undecided calls together and the most open links: else it cannot even refuse in words. Where ranks
//! are restarted it lends two places for each: with fewer, processes that end keep out those that replace them.
//!
//! # Differences from the design note
//! - Calls over hand-off are proved, too, with a challenge of zeros: one path for all carriers. The owner checks the
//!   kernel's word besides ([`LinkOwner::is_from`](terms::LinkOwner::is_from)).
//! - Time alone limits the attempts of a call, not their number. A process that was full for the whole limit ends the
//!   call as refused, not as unreachable.
//! - A restarted rank is a link of its own, since it has another address: a rank names two links until then.
//! - A call names its instance, and for the engine the rank that the caller claims: see [`wire`](crate::link::wire).
//! - The choice of the next offer, if the path of the best one fails, is the owner's within one answer.
#![forbid(unsafe_code)]

mod called;
mod caller;
mod ending;
mod hear;
pub mod slots;
pub mod table;
pub mod terms;
#[cfg(test)]
mod tests;
