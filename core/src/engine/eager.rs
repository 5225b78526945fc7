//! Eager messages: a message leaves at once, without a question to the receiver (papers 4 and 5).
//!
//! A send is eager if the message is short enough ([`Tuning::eager_bytes`](super::Tuning)), the receiver has granted
//! credit for it, and no other send to this peer waits. It then takes no request. Otherwise the send waits in the
//! peer's queue, or the room `lmt` announces the message. No message to the same peer overtakes it.
//!
//! The receiver matches a packet with a posted receive, or copies it to the store of unexpected messages. A blocking
//! receive may take the packet without being posted.
//!
//! | state of a send | queue of the peer | next |
//! |---|---|---|
//! | `Sending` | `Pending` | `Done`; `Offered` if the message is announced; `Streaming` if its bytes follow unasked; `Unacknowledged` if it is synchronous |
//! | `Unacknowledged`: a synchronous message was sent whole | `Offered` | `Done` by a FIN |
//!
//! | state of a receive | next |
//! |---|---|
//! | `Posted` | `Done`; `Receiving` if it has matched an RTS; `Finishing` if the sender waits for a FIN |
//! | `Multi`: as `Posted`, and each message that it takes has a request of its own | `Done` after the last of them |
//! | `Probed`: a matched probe has taken the message out of the store | as `Posted` |
//! | `Lost`: the sender failed before that message was received | `Done` |
//!
//! | file | contents |
//! |---|---|
//! | `eager/send.rs` | starting sends; the queue of pending sends of each peer (paper 4, section 3.1) |
//! | `eager/prefixed.rs` | messages with immediate data; messages that their receiver acknowledges |
//! | `eager/prompt.rs` | the critical path of these messages and of the acknowledgements |
//! | `eager/receive.rs` | posting receives; delivering messages to receives or to the store |
//! | `eager/bypass.rs` | receives that take their message from the port (paper 4, section 3.3) |
//! | `eager/multi.rs` | buffers that receive one message after the other |
//! | `eager/probe.rs` | probes for messages that have arrived |
//! | `eager/own.rs` | messages to this process itself |
//! | `eager/credit.rs` | credits: how much each process may send |
#![forbid(unsafe_code)]

mod bypass;
mod credit;
mod multi;
mod own;
mod prefixed;
mod probe;
mod prompt;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use bypass::Bypass;
